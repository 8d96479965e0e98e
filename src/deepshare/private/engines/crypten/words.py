"""How many words of 64 bits, and how many rounds, the parts of the protocol take."""

BYTES = 8

# CrypTen's adder of 64 bits is one AND, then a tree of six levels. Each AND opens both its factors, and those of the
# tree have two words each.
LEVELS = 6
ADDER_WORDS = 2 + LEVELS * 4
ADDER_ROUNDS = 1 + LEVELS
# What is dealt for a comparison: a word for each AND, and for the random bit its share by addition.
DEALT_WORDS = 1 + LEVELS * 2 + 1


def matches(window: int) -> list[int]:
    """How many pairs compete in each level of a tournament, one level after the other.

    >>> matches(9)
    [4, 2, 1, 1]
    """
    levels = []
    while window > 1:
        levels.append(window // 2)
        window -= window // 2
    return levels
