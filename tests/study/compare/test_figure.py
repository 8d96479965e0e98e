"""Plots of a study."""

from matplotlib.container import ErrorbarContainer

from deepshare.study.compare.figure import draw, styles_of
from deepshare.study.compare.outcome import RunOutcome
from deepshare.study.compare.study_file import Job, Study
from deepshare.study.compare.tables import rows


def test_no_two_methods_of_a_plot_have_the_same_colour(small: Study) -> None:
    drawn = styles_of(small)
    assert len({colour for colour, _ in drawn.values()}) == len(drawn) > 10


def test_bars_reach_from_the_least_seed_to_the_greatest(small: Study, known: dict[Job, RunOutcome]) -> None:
    ours = draw(small, "subset", [row for row in rows(small, known, "subset") if row.runs]).axes[0]
    bars = next(drawn for drawn in ours.containers if drawn.get_label() == "DeepShare")
    assert isinstance(bars, ErrorbarContainer)
    assert [[point[1] for point in bar] for bar in bars.lines[2][0].get_segments()] == [[50.0, 52.0], [55.0, 55.0]]
