"""Plain text tables, for what is printed."""

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
