"""Small scalars times random vectors: against sums over a whole tree, for every scalar; nothing is drawn twice."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.dcf import Words
from deepshare.private.engines.gateshare.crypto.ot import DONE_BYTES, OtReceiver, OtSender, extension_bytes
from deepshare.private.engines.gateshare.crypto.ring import expand
from deepshare.private.engines.gateshare.crypto.vole import LEVEL_BYTES, VoleChooser, VoleHolder
from tests.private.engines.gateshare.crypto.known_base import SEED, STEP, base, is_uniform
from tests.private.engines.gateshare.crypto.two_ends import Ends, Payload, at_both_ends, well

Draw = tuple[slice, int]


def run(
    numbers: list[int],
    bits: int,
    draws: list[Draw],
    change: Callable[[int, Payload], Payload] | None = None,
) -> Ends:
    """A session from known base transfers: the holder's vectors and shares, the chooser's shares, draw by draw."""
    roots = expand(SEED, 16 * len(numbers), "roots").view(np.uint64).reshape(-1, 2)

    def hold(channel: Any) -> Any:
        vole = VoleHolder.begin(channel, STEP, OtSender(channel, STEP, base()[0]), roots, bits)
        return vole._leaves, [vole.draw(*one) for one in draws]

    def choose(channel: Any) -> Any:
        receiver = OtReceiver(channel, STEP, base()[1])
        vole = VoleChooser.begin(channel, STEP, receiver, np.array(numbers, np.uint64), bits)
        return vole._leaves, [vole.draw(*one) for one in draws]

    return at_both_ends(hold, choose, (change, None))


@pytest.mark.parametrize("bits", [1, 2, 3, 5])
def test_every_scalar_and_every_leaf_but_one(bits: int) -> None:
    numbers = list(range(1 << bits))
    ends = well(run(numbers, bits, [(slice(None), 7)]))
    (leaves, [(p, w)]), (known, [share]) = ends.results
    d = np.array(numbers, np.uint64)
    assert np.array_equal(w + share, d[:, None] * p)
    for number in numbers:
        same = (leaves[number] == known[number]).all(1)
        assert same.tolist() == [leaf != number for leaf in numbers]
    assert ends.sent == [LEVEL_BYTES * bits * len(d) + DONE_BYTES, extension_bytes(bits * len(d))]


def test_digits_of_eight_bits_in_parts_of_any_length() -> None:
    numbers = [0, 1, 127, 128, 254, 255, 77]
    draws = [(slice(0, 3), 1), (slice(3, 7), 5), (slice(0, 7), 40_001), (slice(2, 3), 2)]
    ends = well(run(numbers, 8, draws))
    (_, ours), (_, theirs) = ends.results
    for (part, count), (p, w), share in zip(draws, ours, theirs, strict=True):
        assert p.shape == w.shape == share.shape == (len(numbers[part]), count)
        assert np.array_equal(w + share, np.array(numbers[part], np.uint64)[:, None] * p)


def test_vectors_are_the_sums_of_all_leaves_as_one_computes_them_singly() -> None:
    ends = well(run([2], 2, [(slice(None), 3)]))
    (leaves, [(p, w)]), _ = ends.results
    vole = VoleHolder(leaves, base()[0].session)
    streams = [vole._stream(leaves[:, leaf], slice(0, 3), 0)[0] for leaf in range(4)]
    assert np.array_equal(p[0], sum(streams, np.zeros(3, np.uint64)))
    assert np.array_equal(w[0], streams[1] + np.uint64(2) * streams[2] + np.uint64(3) * streams[3])


def test_no_element_is_drawn_twice() -> None:
    draws: list[Draw] = [(slice(0, 2), 9), (slice(0, 2), 9), (slice(1, 2), 3), (slice(0, 2), 9)]
    (_, ours), _ = well(run([5, 5], 3, draws)).results
    every: Words = np.concatenate([p.reshape(-1) for p, _ in ours])
    assert len(np.unique(every)) == len(every)


def test_vectors_shares_and_messages_look_uniform() -> None:
    ends = well(run([3, 200] * 300, 8, [(slice(0, 2), 20_000)]))
    (_, [(p, w)]), (_, [share]) = ends.results
    for part in (p, w, share, p[0] - p[1]):
        assert is_uniform(np.ascontiguousarray(part).reshape(-1).view(np.uint8))
    assert is_uniform(ends.frames[0][-1]) and len(ends.frames[0][-1]) == LEVEL_BYTES * 8 * 600


def test_the_way_to_a_scalar_does_not_show() -> None:
    """What the holder gets is the matrix of the transfers: it looks the same for any scalars."""
    for numbers in ([0] * 800, [255] * 800):
        ends = well(run(numbers, 8, []))
        assert is_uniform(ends.frames[1][0][16:])


@pytest.mark.parametrize("size", [0, 1, LEVEL_BYTES * 6 - 1, LEVEL_BYTES * 6 + 1])
def test_a_message_of_another_length_is_refused(size: int) -> None:
    ends = run([1, 2], 3, [], lambda number, payload: np.resize(payload, size) if number == 1 else payload)
    assert isinstance(ends.errors[1], EngineError) and f"has {size} bytes, not {LEVEL_BYTES * 6}" in ends.lines[1]
    assert all("\n" not in line for line in ends.lines)


def test_a_changed_message_changes_products_and_nothing_else() -> None:
    """Semi-honest: nobody checks the sums, and a wrong one makes wrong products for some scalars alone."""

    def change(number: int, payload: Payload) -> Payload:
        if number == 1:
            payload[:16] ^= 1
        return payload

    for numbers in itertools.product([0, 7], repeat=2):
        ends = well(run(list(numbers), 3, [(slice(None), 4)], change))
        (_, [(p, w)]), (_, [share]) = ends.results
        right = (w + share == np.array(numbers, np.uint64)[:, None] * p).all(1)
        assert right.tolist() == [numbers[0] == 0, True] or right.tolist() == [numbers[0] == 7, True]
