"""Tables that fit a terminal, and text from elsewhere."""

from hypothesis import given
from hypothesis import strategies as st

from deepshare.text import printable, table

HEADER = ("name", "what it is", "count")
ROWS = [("a-long-name-to-copy", "one two three four five six seven", "1"), ("b", "", "22")]


def test_a_table_as_wide_as_it_is() -> None:
    assert table(HEADER, ROWS, "<<>").splitlines() == [
        "name                 what it is                         count",
        "-------------------  ---------------------------------  -----",
        "a-long-name-to-copy  one two three four five six seven      1",
        "b                                                          22",
    ]


def test_a_table_fits_and_keeps_all_words_and_names() -> None:
    lines = table(HEADER, ROWS, "<<>", 48).splitlines()
    assert max(map(len, lines)) == 48
    assert lines[2].startswith("a-long-name-to-copy  ") and lines[2].endswith("    1")
    assert " ".join(" ".join(lines[2:-1]).split()) == "a-long-name-to-copy one two three four 1 five six seven"


def test_names_have_lines_of_their_own_where_little_is_left_beside_them() -> None:
    assert table(HEADER, ROWS, "<<>", 36).splitlines() == [
        "name",
        "  what it is                   count",
        "  ---------------------------  -----",
        "a-long-name-to-copy",
        "  one two three four five six      1",
        "  seven",
        "b",
        "                                  22",
    ]


def test_the_first_column_stays_whole_where_nothing_fits() -> None:
    assert "a-long-name-to-copy" in table(HEADER, ROWS, "<<>", 10)


@given(st.text())
def test_printable_text_is_one_line_without_escapes(text: str) -> None:
    found = printable(text)
    assert len(found) == len(text) and len(found.splitlines()) <= 1 and "\x1b" not in found
    assert printable(found) == found
