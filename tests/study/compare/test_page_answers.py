"""Questions of a study, accuracy by phase, and what is open."""

from math import sqrt
from pathlib import Path

import pytest

from deepshare.errors import RecipeError
from deepshare.study.compare.curves import losses, phases
from deepshare.study.compare.outcome import RunOutcome, best_epoch, write
from deepshare.study.compare.page import as_markdown, questions, remaining
from deepshare.study.compare.study_file import TEACHER, Job, Study, load_study
from deepshare.study.published import paper
from deepshare.training.catalog import BestEpoch
from tests.study.compare.made_outcomes import finished


@pytest.fixture(scope="module")
def fair() -> Study:
    return load_study("fair")


def outcomes_of(*made: RunOutcome) -> dict[Job, RunOutcome]:
    return {outcome.job: outcome for outcome in made}


def test_a_question_is_open_until_both_methods_have_a_result(fair: Study) -> None:
    shared = [finished(fair, Job("deepshare", "subset", 2288, seed), 45.0 + seed) for seed in range(3)]
    table = questions(fair, outcomes_of(*shared))
    assert table is not None
    assert {line[2] for line in table.lines} == {"open"}
    rival = [finished(fair, Job("autorep", "subset", 2288, seed), test) for seed, test in enumerate((44.0, 44.5, 1.0))]
    table = questions(fair, outcomes_of(*shared, *rival))
    assert table is not None
    error = sqrt(1.0 / 3 + 0.125 / 2)  # of seeds 0 and 1: the third diverged
    assert table.lines[0][1:] == ("2,288", f"+1.75 ± {error:.2f}", "", "3 and 2", "+2.34")


def test_the_best_epochs_stand_beside_the_last(fair: Study) -> None:
    ours = {"gelu": [60.0], "switch": [60.0], "finetune": [41.0, 43.0]}
    rival = {"search": [50.0, 50.0], "finetune": [42.0, 30.0]}
    made = [
        finished(fair, Job("deepshare", "subset", 2288), 44.0, curve=ours),
        finished(fair, Job("autorep", "subset", 2288), 31.0, curve=rival),
    ]
    table = questions(fair, outcomes_of(*made))
    assert table is not None
    assert table.lines[0][1:] == ("2,288", "+13.00", "+1.00", "1 and 1", "+2.34")


def test_an_epoch_with_more_gates_than_the_budget_is_not_the_best(fair: Study) -> None:
    scores = [60.0] * 24 + [40.0, 42.0] + [41.0] * 14  # its ReLUs are gone after epoch 24
    faded = finished(fair, Job("deepshare-fade", "subset", 2288), 41.0, curve={"finetune": scores})
    assert best_epoch(fair, faded) == (26, 42.0)
    assert faded.run is not None
    run = faded.run.model_copy(update={"best": BestEpoch(epoch=30, validation=43.0, test=44.0)})
    assert best_epoch(fair, faded.model_copy(update={"run": run})) == (30, 43.0)
    assert best_epoch(fair, finished(fair, Job("snl", "subset", 2288), 41.0)) is None


def test_differences_of_the_paper_are_those_of_its_table(fair: Study) -> None:
    published = paper.load().find("resnet18", "cifar100")
    assert published is not None
    score = {(row.method, row.gates_k): row.score for row in published.rows}
    expected = {
        2288: score["DeepShare", 6.0] - score["AutoReP", 6.0],
        1536: score["DeepShare", 6.0] - score["AutoReP", 6.0],
        12288: score["DeepShare", 49.9] - score["AutoReP", 50.0],
    }
    said = {q.at: q.paper for q in fair.questions if (q.first, q.second) == ("deepshare", "autorep")}
    assert said == {at: pytest.approx(value) for at, value in expected.items()}
    (ceiling,) = (q.paper for q in fair.questions if q.second == "ceiling-paper")
    assert ceiling == pytest.approx(score["DeepShare", 6.0] - published.baseline.score)


def test_accuracy_after_each_phase(fair: Study) -> None:
    curve = {"gelu": [20.0, 39.2], "switch": [37.0], "finetune": [37.2]}
    made = [
        finished(fair, Job(TEACHER, "subset"), 45.0),
        finished(fair, Job("deepshare", "subset", 2288), 38.0, curve=curve),
        finished(fair, Job("autorep", "subset", 2288), 37.0, curve={"search": [40.0], "finetune": [36.0]}),
    ]
    table = phases(fair, outcomes_of(*made), "subset")
    assert table is not None
    names = ("gelu", "switch", "search", "finetune")
    assert table.header == ("accuracy (change), epochs", "start", *names, "best epoch", "seeds")
    assert table.lines == [
        ("DeepShare", "", "39.20, 2", "37.00 (-2.20), 1", "", "37.20 (+0.20), 1", "37.20, 1", "1"),
        ("AutoReP", "44.00", "", "", "40.00 (-4.00), 1", "36.00 (-4.00), 1", "36.00, 1", "1"),
    ]
    assert phases(fair, {}, "subset") is None


def test_where_accuracy_is_lost(fair: Study, tmp_path: Path) -> None:
    seeds = [
        {"gelu": [20.0, 40.0], "switch": [39.0, 37.0], "finetune": [38.0]},
        {"gelu": [22.0, 41.0], "switch": [39.0, 38.0], "finetune": [39.0]},
    ]
    made = [finished(fair, Job("deepshare", "subset", 2288, n), 38.0, curve=curve) for n, curve in enumerate(seeds)]
    made.append(
        finished(fair, Job("snl", "subset", 2288), 31.0, curve={"search": [40.0], "finetune": [33.0, 20.0, 30.0]})
    )
    made.append(finished(fair, Job("autorep", "subset", 2288), 31.0, curve={"search": [33.0], "finetune": [30.5]}))
    found = outcomes_of(*made)
    folder = tmp_path / "subset-deepshare-2288-seed0"
    folder.mkdir()
    lines = ('{"phase": "gelu", "accuracy": 0.5}', '{"phase": "switch", "accuracy": 0.44}')
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    ours = (
        "DeepShare: The GELU phase ends at 40.50. The switch loses 3.00 points (-1.50 in its first epoch, in "
        "which the rate goes from 0.001 to 0.01). The finetune gains 1.00 points, and ends 2.00 below the GELU phase."
    )
    snl = (
        "SNL: its best epoch after its search is 1 of 3, with 33.00. It falls to 20.00 in epoch 2. "
        "It ends 3.00 points below its best."
    )
    assert losses(fair, found, "subset") == [ours, snl]
    trained = f"{ours} On its training images, seed 0: 50.0% after gelu, 44.0% after switch."
    assert losses(fair, found, "subset", tmp_path) == [trained, snl]
    assert f"### Where accuracy is lost\n\n- {ours}\n- {snl}\n" in as_markdown(fair, found, [])


def test_a_best_epoch_with_more_gates_than_the_budget_says_so(fair: Study) -> None:
    scores = [60.0] + [50.0] * 23 + [48.0] * 16
    made = finished(fair, Job("deepshare-fade", "subset", 2288), 48.0, curve={"finetune": scores})
    (said,) = losses(fair, outcomes_of(made), "subset")
    assert "its best epoch is 1 of 40, with 60.00, while its ReLUs still fade. It falls to 48.00 in epoch 25." in said


def test_what_is_open(fair: Study) -> None:
    everything = remaining(fair, {})
    assert "all methods at 2,288 gates, and the plain network: 7 of 7 runs" in everything
    assert "the two best at 2,288 gates on all images: not selected yet" in everything
    one = outcomes_of(finished(fair, Job("quadratics", "subset", 0), 40.0))
    assert not any(line.startswith("no gates at all") for line in remaining(fair, one))


def test_the_page_lists_the_settings_that_were_tried_for_every_method(fair: Study) -> None:
    assert all(entry.tried for entry in fair.methods.values())
    *_, said = as_markdown(fair, {}, []).partition("## Settings tried\n\n")
    assert said.count("\n- ") >= len(fair.methods) - 1
    assert "- AutoReP: Three searches: 34 epochs, which diverged in the 15th, at 45.6% on validation images;" in said
    assert "Settings tried" not in as_markdown(load_study("digits"), {}, [])


def test_ablations_of_another_study_are_on_the_page(fair: Study, tmp_path: Path) -> None:
    page = as_markdown(fair, {}, [], tmp_path)
    assert "In the study fair-ablations, which has not been run yet." in page
    other, folder = load_study("fair-ablations"), tmp_path / "fair-ablations"
    folder.mkdir()
    for method, test in (("deepshare", 40.0), ("no-gelu", 36.5)):
        write(finished(other, Job(method, "subset", 1536), test), folder)
    page = as_markdown(fair, {}, [], tmp_path)
    assert "| No GELU phase | 36.50 | -3.50 | 69.44 | -6.69 |" in page
    assert "](../fair-ablations/README.md)" in page


def test_a_question_about_an_unknown_method_is_refused(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "src/deepshare/study/compare/studies/digits.toml").read_text()
    asked = 'questions = [{ about = "x", first = "snl", second = "none", at = 192 }]\n'
    (tmp_path / "asked.toml").write_text(asked + text)
    with pytest.raises(RecipeError, match=r'questions: "x" needs methods\.none, which the study does not have'):
        load_study(str(tmp_path / "asked.toml"))
