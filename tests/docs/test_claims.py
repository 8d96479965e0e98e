"""Every figure that a page states about studies and trained networks is that of a committed record."""

import re
from pathlib import Path

import pytest

from tests.docs.claims import PAGES
from tests.docs.figures_of_pages import numbers, section, sentences, written_by_hand
from tests.docs.pages import DOCS, ROOT
from tests.docs.words import found_in_words

# What looks like a result: an accuracy with two digits, or points won or lost.
POINTS = r"(?:\d+(?:\.\d+)?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty) points"
RESULT = re.compile(
    rf"\d\d\.\d\d ?%|{POINTS} (?:more|less|better|worse|over|above|below)|(?:gain|lose|lost|worth)\w* [^.;]*{POINTS}",
    re.IGNORECASE,
)
OTHER = [page for page in sorted(DOCS.rglob("*.md")) if page.name not in ("comparators.md", "measurements.md")]


@pytest.mark.parametrize(("page", "heading"), PAGES, ids=lambda part: str(part))
def test_every_figure_is_that_of_a_record(page: str, heading: str | None) -> None:
    claims = PAGES[page, heading]()
    said = [sentence for sentence in sentences(section(ROOT / page, heading)) if numbers(sentence)]
    for sentence in said:
        starts = [start for start in claims if sentence.startswith(start)]
        assert starts, f"no record is named for: {sentence}"
        assert numbers(sentence) == claims[max(starts, key=len)], sentence
    gone = [start for start in claims if not any(sentence.startswith(start) for sentence in said)]
    assert gone == [], "claims of sentences that the page no longer has"


def test_every_sentence_without_figures_is_borne_out() -> None:
    claims = found_in_words()
    said = [s for s in sentences(section(DOCS / "comparators.md", "Found")) if s and not numbers(s)]
    for sentence in said:
        starts = [start for start in claims if sentence.startswith(start)]
        assert starts, f"nothing is named that bears out: {sentence}"
        assert claims[max(starts, key=len)], sentence
    gone = [start for start in claims if not any(sentence.startswith(start) for sentence in said)]
    assert gone == [], "claims of sentences that the page no longer has"


def test_a_figure_without_a_record_says_so() -> None:
    found = list(sentences(section(DOCS / "comparators.md", "Found")))
    assert [s for s in found if "45.94" in s and "without a record" not in s] == []


@pytest.mark.parametrize("page", OTHER, ids=lambda page: str(page.relative_to(DOCS)))
def test_other_pages_state_no_results(page: Path) -> None:
    text = written_by_hand(page.read_text(encoding="utf-8"))
    for name, heading in PAGES:
        if heading is not None and ROOT / name == page:
            text = text.replace(section(page, heading), "")
    assert [s for s in sentences(text) if RESULT.search(s)] == []
