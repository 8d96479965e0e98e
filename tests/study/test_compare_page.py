"""Tables, page and plots from results alone."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.container import ErrorbarContainer

from deepshare.study.compare.beside import ablations, comparable, orders, tables_beside, variants
from deepshare.study.compare.definition import TEACHER, Job, Study
from deepshare.study.compare.figure import draw, styles_of
from deepshare.study.compare.jobs import jobs
from deepshare.study.compare.outcome import Outcome
from deepshare.study.compare.page import as_markdown, as_text, notes, progress
from deepshare.study.compare.recipes import load_study
from deepshare.study.compare.results import save
from deepshare.study.compare.rows import rows
from tests.study.compare_results import finished, refused


@pytest.fixture(scope="module")
def small() -> Study:
    return load_study("small")


@pytest.fixture(scope="module")
def known(small: Study) -> dict[Job, Outcome]:
    """A teacher, DeepShare with three seeds, SNL cut by rank, DELPHI refused, and two ablations."""
    trimmed = Job("delphi", "subset", 1536)
    made = [
        finished(small, Job(TEACHER, "subset"), 60.0),
        *(finished(small, Job("deepshare", "subset", 1536, seed), 50.0 + seed) for seed in range(3)),
        finished(small, Job("snl", "subset", 1536), 40.0, searched=9999, private=None),
        refused(small, trimmed, "delphi keeps whole layers"),
        finished(small, Job("deepshare", "subset", 6144), 55.0),
        finished(small, Job("no-affine", "subset", 6144), 53.5),
        finished(small, Job("deepshare", "full", 1536), 70.0),
        finished(small, Job(TEACHER, "full"), 75.0),
    ]
    return {outcome.job: outcome for outcome in made}


def test_rows_are_means_over_seeds_with_their_spread(small: Study, known: dict[Job, Outcome]) -> None:
    found = rows(small, known, "subset")
    assert [(row.method, row.budget) for row in found] == [
        *((TEACHER, None), ("deepshare", 1536), ("snl", 1536), ("delphi", 1536)),
        *(("deepshare", 6144), ("no-affine", 6144)),
    ]
    shared = found[1]
    assert (shared.test.mean, shared.test.spread) == (51.0, 1.0)
    assert shared.cells == (
        *("DeepShare", "1,536", "51.00 ± 1.00", "50.00 ± 1.00", "1,536", "33.20", "1.5 MB", "7", "1.5 min", "3"),
    )
    assert found[2].cells[5:8] == ("26.04", "not known", "")
    assert found[3].cells[:3] == ("DELPHI", "1,536", "no result")
    assert found[3].to_dict()["refused"] == "delphi keeps whole layers"
    assert shared.to_dict()["accuracy_per_1000_gates"] == pytest.approx(51_000 / 1536)


def test_notes_say_what_was_cut_and_what_cannot_be_done(small: Study, known: dict[Job, Outcome]) -> None:
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


def test_ablations_stand_beside_the_papers(small: Study, known: dict[Job, Outcome]) -> None:
    lines = ablations(small, comparable(small, known))
    assert lines[0] == ("Full method", "55.00", "+0.00", "76.13", "+0.00")
    assert lines[1] == ("No affine transformation", "53.50", "-1.50", "73.51", "-2.62")
    assert lines[-1] == ("No Replicates", "not run yet", "", "56.08", "-20.05")
    assert list(tables_beside(load_study("digits"), {})) == []


def test_the_papers_order_stands_beside_ours(small: Study) -> None:
    scores = {"deepshare": 50.0, "autorep": 51.0, "snl": 40.0, "senet": 45.0, "deepshare-started": 60.0}
    made = [finished(small, Job(method, "subset", 12288), score) for method, score in scores.items()]
    made += [finished(small, Job("deepshare", "subset", 1536), 30.0), finished(small, Job("snl", "subset", 1536), 35.0)]
    made.append(narrow := finished(small, Job("deepreduce", "subset", 12288), 70.0))
    runs = [
        outcome.run.model_copy(update={"neurons": 61_440 if outcome is narrow else 122_880})
        for outcome in made
        if outcome.run
    ]
    outcomes = {o.job: o.model_copy(update={"run": run}) for o, run in zip(made, runs, strict=True)}
    # At 1.25% the paper has no SNL, so that there is no pair; at 10% all but the pair that we have the other way round.
    assert orders(small, comparable(small, outcomes)) == [
        (
            "10.00%",
            "DeepShare 77.98, AutoReP 75.48, SENet 75.28, SNL 73.75",
            "AutoReP 51.00, DeepShare 50.00, SENet 45.00, SNL 40.00",
            "5 of 6",
        )
    ]


def test_published_rows_are_marked_as_such(small: Study, known: dict[Job, Outcome]) -> None:
    last = list(tables_beside(small, known))[-1]
    assert last.title.startswith("Published: ResNet-18 of full width on CIFAR-100")
    assert last.lines[0] == ("DeepShare", "6,000", "1.22%", "76.13", "12.69")
    assert last.lines[-1] == ("Baseline", "491,520", "100.00%", "78.23", "0.16")
    own = {line[0].partition(" (own network)")[0] for line in last.lines if "own network" in line[0]}
    assert own == {"CryptoNAS", "Sphynx", "Seesaw", "HybReNet"}
    assert len(last.lines) == 19


def test_no_two_methods_of_a_plot_have_the_same_colour(small: Study) -> None:
    drawn = styles_of(small)
    assert len({colour for colour, _ in drawn.values()}) == len(drawn) > 10


def test_variants_stand_beside_deepshare_at_the_same_budget_with_the_same_seeds(
    small: Study, known: dict[Job, Outcome]
) -> None:
    job = Job("annealed", "subset", 1536)
    more = {
        **known,
        job: finished(small, job, 53.0),
        (third := Job("annealed", "subset", 1536, 2)): finished(small, third, 54.0),
        (other := Job("annealed", "subset", 12288)): finished(small, other, 60.0),
    }
    assert variants(small, comparable(small, more)) == [
        # of seeds 0 and 2, as DeepShare's 50 and 52
        ("DeepShare annealed", "1,536", "53.50 ± 0.71", "+2.50", "52.50 ± 0.71", "+2.50", "2")
    ]


def test_numbers_of_training_are_said_where_they_are_not_float32(small: Study, known: dict[Job, Outcome]) -> None:
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


def test_images_are_never_mixed_in_a_table(small: Study, known: dict[Job, Outcome]) -> None:
    assert [row.test.mean for row in rows(small, known, "full")] == [75.0, 70.0]
    text = as_text(small, known)
    assert text.index("20,000 training images") < text.index("All 45,000 training images") < text.index("Ablations at")
    assert progress(small, {}).startswith("0 of 65 runs are finished. Chosen when these are finished: ")
    some = {job: outcome for job, outcome in known.items() if job in jobs(small, {})}
    assert progress(small, some).startswith(f"{len(some)} of 65 runs are finished, 1 of them without a result.")


def test_the_page_and_its_plots(small: Study, known: dict[Job, Outcome], tmp_path: Path) -> None:
    save(small, known, tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert page == as_markdown(small, known, ["subset", "full"])
    header = next(line for line in page.splitlines() if line.startswith("| method"))
    assert page.count(header) == 2
    assert "| DeepShare | 1,536 | 51.00 ± 1.00 |" in page
    assert "after the 13 epochs of the teacher" in page
    for data in ("subset", "full"):
        assert f"(pareto-{data}.svg)" in page
        assert (tmp_path / f"pareto-{data}.png").stat().st_size > 10_000
    drawn = ElementTree.parse(tmp_path / "pareto-subset.svg").getroot()
    words = {text for node in drawn.iter() if (text := (node.text or "").strip())}
    assert {"DeepShare", "SNL", "AutoReP", "CryptoNAS (own network)", "1,536", "the teacher"} <= words
    assert "DELPHI" not in words  # it has no point
    assert "DeepShare without alpha and beta" not in words
    before = (tmp_path / "pareto-subset.svg").read_bytes()
    save(small, known, tmp_path)
    assert (tmp_path / "pareto-subset.svg").read_bytes() == before


def test_bars_reach_from_the_least_seed_to_the_greatest(small: Study, known: dict[Job, Outcome]) -> None:
    ours = draw(small, "subset", [row for row in rows(small, known, "subset") if row.runs]).axes[0]
    bars = next(drawn for drawn in ours.containers if drawn.get_label() == "DeepShare")
    assert isinstance(bars, ErrorbarContainer)
    assert [[point[1] for point in bar] for bar in bars.lines[2][0].get_segments()] == [[50.0, 52.0], [55.0, 55.0]]


def test_a_page_without_results(small: Study, tmp_path: Path) -> None:
    save(small, {}, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["README.md"]
    assert "0 of 65 runs are finished" in (tmp_path / "README.md").read_text()
