"""Figures, sentences and tables as pages write them."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

Figures = Mapping[str, Any]


def seconds(value: float) -> str:
    """Format a time with two or three digits."""
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} s"


def megabytes(count: float) -> str:
    """Format a number of bytes."""
    value = count / 1e6
    return f"{value:,.{0 if value >= 1000 else 1}f} MB"


def times(value: float) -> str:
    """Format a ratio with two digits."""
    return f"{value:.{1 if value < 10 else 0}f}"


def say(text: str) -> str:
    """Break a sentence or an item of a list into lines, as the rest of a page is."""
    text = " ".join(text.split())
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Format a table; its first columns are words, the others figures."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * left}{'---:|' * (len(header) - left)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
