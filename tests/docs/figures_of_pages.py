"""Sentences of pages and the figures in them."""

import re
from collections.abc import Iterator
from pathlib import Path

from dev.measured.page import MARKS

NUMBER = re.compile(r"(?<![\w.,/-])\d+(?:,\d{3})*(?:\.\d+)?(?![\w/]|[.,]\d)")


GENERATED = re.compile(r"<!-- (\w+) -->\n.*?<!-- end of \1 -->", re.DOTALL)


def written_by_hand(text: str) -> str:
    """Text without the parts that are made from records, which other tests hold to them."""
    return GENERATED.sub("", MARKS.sub("", text))


def section(page: Path, heading: str | None) -> str:
    """Text of a section with its subsections, or of the whole page."""
    text = written_by_hand(page.read_text(encoding="utf-8"))
    if heading is None:
        return text
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,2}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no section {heading}"
    return found[2]


def sentences(text: str) -> Iterator[str]:
    """Sentences of a text and rows of its tables, without code, images and targets of links."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"`[^`]*`", "`", text)
    for block in re.split(r"\n\s*\n|\n(?=\||- )", text):
        line = " ".join(block.split())
        if line.startswith("#"):
            continue
        yield from [line] if line.startswith("|") else re.split(r"(?<=\.)\s+", line)


def numbers(sentence: str) -> list[str]:
    """All numbers in a sentence, as written; those that are part of a name or of a size such as 32x32 are not."""
    return NUMBER.findall(sentence)
