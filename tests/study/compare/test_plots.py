"""Plots of a study."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from deepshare.study.compare.outcome import RunOutcome
from deepshare.study.compare.plots import draw, draw_curves, save_plots, styles_of
from deepshare.study.compare.study_file import TEACHER, Job, Study, load_study
from deepshare.study.compare.tables import rows
from tests.study.compare.made_outcomes import finished


@pytest.fixture(scope="module")
def fair() -> Study:
    return load_study("fair")


def full(study: Study, job: Job, test: float, curve: dict[str, list[float]] | None = None) -> RunOutcome:
    """A run on the network of the study, with its curve."""
    outcome = finished(study, job, test, curve=curve)
    assert outcome.run is not None
    gates = 122_880 if job.budget is None else job.budget
    return outcome.model_copy(update={"run": outcome.run.model_copy(update={"neurons": 122_880, "gates": gates})})


@pytest.mark.parametrize("name", ["small", "fair", "paper"])
def test_methods_of_a_plot_have_colours_of_their_own_and_a_study_in_the_readme_has_few(name: str) -> None:
    study = load_study(name)
    drawn = styles_of(study)
    assert len({colour for colour, _ in drawn.values()}) == len(drawn)
    few = [entry for method, entry in study.methods.items() if entry.drawn and study.has_budget(method)]
    assert name == "paper" or len(few) <= 6


def test_bars_reach_from_the_least_seed_to_the_greatest(small: Study, known: dict[Job, RunOutcome]) -> None:
    ours = draw(small, "subset", [row for row in rows(small, known, "subset") if row.runs]).axes[0]
    bars = next(drawn for drawn in ours.containers if drawn.get_label() == "DeepShare")
    assert isinstance(bars, ErrorbarContainer)
    assert [[point[1] for point in bar] for bar in bars.lines[2][0].get_segments()] == [[50.0, 52.0], [55.0, 55.0]]


def test_a_diverged_seed_does_not_stretch_the_plot(fair: Study) -> None:
    made = [full(fair, Job("autorep", "subset", 2288, seed), test) for seed, test in enumerate((47.0, 48.0, 1.0))]
    lost = Job("snl", "subset", 2288)
    made.append(full(fair, lost, 12.0, {"search": [40.0, 39.0], "finetune": [11.0]}))
    made.append(full(fair, Job("quadratics", "subset", 0), 44.0))
    found = rows(fair, {outcome.job: outcome for outcome in made}, "subset")
    assert {row.title: row.diverged for row in found} == {"AutoReP": {2}, "SNL": {0}, "quadratics only": set()}
    axes = draw(fair, "subset", found).axes[0]
    assert [drawn.get_label() for drawn in axes.containers] == ["AutoReP"]
    assert axes.get_ylim() == (42.0, 50.0)  # from the line of the quadratics to the best seed
    assert "quadratics only" in [text.get_text() for text in axes.texts]


def test_curves_start_where_the_teacher_ends_and_mark_the_end_of_each_phase(fair: Study, tmp_path: Path) -> None:
    curve = {"search": [30.0, 32.0], "finetune": [35.0]}
    made = [
        full(fair, Job(TEACHER, "subset"), 45.0, {"plain": [10.0] * 19 + [44.0]}),
        full(fair, Job("autorep", "subset", 2288), 36.0, curve),
        full(
            fair, Job("deepshare", "subset", 2288), 41.0, {"gelu": [20.0, 39.0], "switch": [38.0], "finetune": [40.0]}
        ),
    ]
    outcomes = {outcome.job: outcome for outcome in made}
    assert save_plots(fair, outcomes, tmp_path) == ["pareto-subset", "curves-subset"]
    assert {file.suffix for file in tmp_path.iterdir()} == {".svg", ".png"}
    axes = draw_curves(fair, "subset", rows(fair, outcomes, "subset"), {TEACHER: made[0]}).axes[0]
    lines = {str(line.get_label()): np.asarray(line.get_xydata()).tolist() for line in axes.lines}
    assert lines["AutoReP"] == [[21, 30.0], [22, 32.0], [23, 35.0]]
    assert lines["DeepShare"][-1] == [4, 40.0]
    ends = [np.asarray(line.get_xydata()).tolist()[0] for line in axes.lines if line.get_marker() == "o"]
    assert [22, 32.0] in ends and [2, 39.0] in ends and [3, 38.0] in ends
