"""Text formatting: tables, byte sizes, text from elsewhere, the nearest known name."""

import difflib
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

# Beside names, narrower columns are hard to read; below names, there is room.
NARROW, NARROWEST, INDENT = 20, 10, "  "


def table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str, width: int | None = None) -> str:
    """Format rows as aligned columns under a header.

    Args:
        header: Column titles.
        rows: Cells as text.
        align: "<" or ">" for each column.
        width: Characters in a line. Cells of the widest columns are broken to fit, except for the first column, whose
            names people copy; where too little is left beside it, names have lines of their own.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    if not width or _total(widths) <= width:
        return "\n".join(_line(cells, align, widths) for cells in (header, _rule(widths), *rows))
    beside = [widths[0], *_fitted(widths[1:], width - widths[0] - 2, NARROW)]
    if _total(beside) <= width or len(widths) < 3:
        lines = [line for row in rows for line in _broken(row, beside)]
        return "\n".join(_line(cells, align, beside) for cells in (header, _rule(beside), *lines))
    below = _fitted(widths[1:], width - len(INDENT), NARROWEST)

    def indented(cells: Sequence[str]) -> str:
        return INDENT + _line(cells, align[1:], below)

    shown = [header[0], indented(header[1:]), indented(_rule(below))]
    for name, *cells in rows:
        shown += [name, *map(indented, _broken(cells, below))]
    return "\n".join(shown)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _fitted(widths: Sequence[int], width: int, narrowest: int) -> list[int]:
    """Narrow the widest columns until all fit, or none is wider than the narrowest allowed."""
    fitted = list(widths)
    while _total(fitted) > width and max(fitted) > narrowest:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted


def _rule(widths: Sequence[int]) -> list[str]:
    return ["-" * width for width in widths]


def _line(cells: Sequence[str], align: str, widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:{side}{size}}" for cell, side, size in zip(cells, align, widths, strict=True)).rstrip()


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


def nearest(text: str, known: Sequence[str], prefix: str = "", cutoff: float = 0.5) -> str:
    """Return `, did you mean "..."?`, or an empty string if no known name is close; with a cutoff of 0 one always is.

    >>> nearest("resnt18", ["resnet18", "vgg16"]), nearest("x", ["resnet18"]), nearest("x", ["resnet18"], cutoff=0)
    (', did you mean "resnet18"?', '', ', did you mean "resnet18"?')
    """
    near = difflib.get_close_matches(text, known, n=1, cutoff=cutoff)
    return f', did you mean "{prefix}{near[0]}"?' if near else ""
