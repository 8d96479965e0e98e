"""Text formatting: tables, byte sizes, text from elsewhere, the nearest known name."""

import difflib
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

NARROWEST = 12


def table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str, width: int | None = None) -> str:
    """Format rows as aligned columns under a header.

    Args:
        header: Column titles.
        rows: Cells as text.
        align: "<" or ">" for each column.
        width: Characters in a line. Cells of the widest columns are broken to fit, except for the first column, whose
            names people copy.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    while width and sum(widths) + 2 * (len(widths) - 1) > width and max(widths[1:]) > NARROWEST:
        widths[widths.index(max(widths[1:]), 1)] -= 1
    if width:
        rows = [line for row in rows for line in _broken(row, widths)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(cells, align, widths, strict=True)
        ).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


def _broken(row: Sequence[str], widths: Sequence[int]) -> list[tuple[str, ...]]:
    """Break the cells of a row into lines."""
    cells = [textwrap.wrap(cell, size) or [""] for cell, size in zip(row, widths, strict=True)]
    return list(zip_longest(*cells, fillvalue=""))


def byte_size(count: int) -> str:
    """Format a number of bytes: 1,234 B or 12.3 MB."""
    if count < 10_000:
        return f"{count:,} B"
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def printable(text: str) -> str:
    """Make one line of text from elsewhere: nothing in it is left that a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in text)


def nearest(text: str, known: Sequence[str], prefix: str = "") -> str:
    """Return `, did you mean "..."?`, or an empty string if no known name is close."""
    near = difflib.get_close_matches(text, known, n=1, cutoff=0.5)
    return f', did you mean "{prefix}{near[0]}"?' if near else ""
