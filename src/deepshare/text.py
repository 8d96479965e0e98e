"""Text for people: tables, byte sizes, the nearest known name."""

import difflib
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """Rows as aligned columns under a header.

    Args:
        header: Titles of the columns.
        rows: Cells, as text.
        align: One of "<" and ">" for each column.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(cells, align, widths, strict=True)
        ).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


def byte_size(count: int) -> str:
    """Bytes as people read them: 1,234 B or 12.3 MB."""
    if count < 10_000:
        return f"{count:,} B"
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def nearest(text: str, known: Sequence[str], prefix: str = "") -> str:
    """Return `, did you mean "..."?`, or nothing when nothing is near."""
    near = difflib.get_close_matches(text, known, n=1, cutoff=0.5)
    return f', did you mean "{prefix}{near[0]}"?' if near else ""
