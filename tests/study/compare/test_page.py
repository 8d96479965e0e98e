"""Results of a study as text and as a page."""

from pathlib import Path
from xml.etree import ElementTree

from deepshare.study.compare.outcome import RunOutcome
from deepshare.study.compare.page import as_markdown, as_text, notes, progress, save
from deepshare.study.compare.runner import jobs
from deepshare.study.compare.study_file import TEACHER, Job, Study
from deepshare.study.compare.tables import rows
from tests.study.compare.made_outcomes import finished


def test_notes_say_what_was_cut_and_what_cannot_be_done(small: Study, known: dict[Job, RunOutcome]) -> None:
    said = notes(small, rows(small, known, "subset"))
    assert "SNL at 1,536: the search left 9,999 gates, which were cut by rank to the budget." in said
    assert "DELPHI at 1,536, no result: delphi keeps whole layers" in said
    assert sum(note.startswith("SNL: Its lasso") for note in said) == 1


def test_a_search_that_ended_early_or_below_the_budget_is_told(small: Study) -> None:
    job = Job("snl", "subset", 1536)
    outcome = finished(small, job, 40.0, searched=1000)
    assert outcome.run is not None
    run = outcome.run.model_copy(update={"epochs": {"search": 5, "finetune": 4}})
    said = notes(small, rows(small, {job: outcome.model_copy(update={"run": run})}, "subset"))
    assert "SNL at 1,536: the search left 1,000 gates, which were filled up by rank to the budget." in said
    assert "SNL at 1,536: its search ended early, so that it had 9 epochs instead of 13." in said


def test_numbers_of_training_are_said_where_they_are_not_float32(small: Study, known: dict[Job, RunOutcome]) -> None:
    assert "bfloat16" not in as_markdown(small, known, [])
    halves = {
        job: outcome.model_copy(
            update={"run": outcome.run and outcome.run.model_copy(update={"environment": {"precision": "bf16-mixed"}})}
        )
        for job, outcome in known.items()
    }
    assert "9 of 9 runs were trained in bfloat16 (`--precision bf16-mixed`). Accuracy" in as_markdown(small, halves, [])
    job = Job(TEACHER, "subset")
    said = as_markdown(small, {**halves, job: known[job]}, [])
    assert "8 of 9 runs were trained in bfloat16 (`--precision bf16-mixed`); in float32 subset-teacher-seed0." in said


def test_compiled_networks_are_said(small: Study, known: dict[Job, RunOutcome]) -> None:
    assert "--compile" not in as_markdown(small, known, [])
    job = Job(TEACHER, "subset")
    run = known[job].run
    assert run is not None
    compiled = known[job].model_copy(update={"run": run.model_copy(update={"environment": {"compile": True}})})
    said = as_markdown(small, {**known, job: compiled}, [])
    assert "1 of 9 runs were of compiled networks (`--compile`), which round differently: subset-teacher-seed0." in said


def test_images_are_never_mixed_in_a_table(small: Study, known: dict[Job, RunOutcome]) -> None:
    assert [row.test.mean for row in rows(small, known, "full")] == [75.0, 70.0]
    text = as_text(small, known)
    assert text.index("20,000 training images") < text.index("All 45,000 training images") < text.index("Ablations at")
    assert progress(small, {}).startswith("0 of 65 runs are finished. Chosen when these are finished: ")
    some = {job: outcome for job, outcome in known.items() if job in jobs(small, {})}
    assert progress(small, some).startswith(f"{len(some)} of 65 runs are finished, 1 of them without a result.")


def test_the_page_and_its_plots(small: Study, known: dict[Job, RunOutcome], tmp_path: Path) -> None:
    save(small, known, tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert page == as_markdown(small, known, ["pareto-subset", "pareto-full"], tmp_path.parent)
    header = next(line for line in page.splitlines() if line.startswith("| method"))
    assert page.count(header) == 2
    assert "| DeepShare | 1,536 | 51.00 ± 1.00 |" in page
    assert "the terms are not equal" in page
    for data in ("subset", "full"):
        assert f"(pareto-{data}.svg)" in page
        assert (tmp_path / f"pareto-{data}.png").stat().st_size > 10_000
    drawn = ElementTree.parse(tmp_path / "pareto-subset.svg").getroot()
    words = {text for node in drawn.iter() if (text := (node.text or "").strip())}
    assert {"DeepShare", "SNL", "AutoReP", "1,536", "the teacher"} <= words
    assert "CryptoNAS (own network)" not in words  # the study does not have it
    assert "DeepShare without alpha and beta" not in words
    before = (tmp_path / "pareto-subset.svg").read_bytes()
    save(small, known, tmp_path)
    assert (tmp_path / "pareto-subset.svg").read_bytes() == before


def test_a_page_without_results(small: Study, tmp_path: Path) -> None:
    save(small, {}, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["README.md"]
    assert "0 of 65 runs are finished" in (tmp_path / "README.md").read_text()
