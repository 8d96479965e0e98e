"""What stands beside the results of a study: its page and its plots."""

from pathlib import Path

from deepshare.files import write_atomically
from deepshare.study.compare.definition import Study
from deepshare.study.compare.figure import save as save_figures
from deepshare.study.compare.outcome import Outcomes
from deepshare.study.compare.page import as_markdown


def save(study: Study, outcomes: Outcomes, folder: Path) -> None:
    """Write `README.md` and `pareto-NAME.svg` and `.png` into an existing folder."""
    figures = save_figures(study, outcomes, folder)
    write_atomically(folder / "README.md", as_markdown(study, outcomes, figures).encode())
