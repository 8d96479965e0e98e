"""The report: one page about finished runs, for people.

write([Path("runs/digits")], Path("report.html"))
"""

from collections.abc import Sequence
from pathlib import Path

from deepshare.errors import CheckpointError
from deepshare.files import write_atomically
from deepshare.study.report import run as reading
from deepshare.study.report.page import page
from deepshare.study.report.run import Run
from deepshare.study.samples import check_run

__all__ = ["Run", "check", "page", "read", "write"]


def check(folders: Sequence[Path]) -> None:
    """See whether all folders hold finished runs, before any work.

    Raises:
        CheckpointError: One does not, or there is none.
    """
    if not folders:
        raise CheckpointError("there is no run to report on: give the folder of a finished run")
    for folder in folders:
        check_run(folder)


def read(folders: Sequence[Path], data_dir: Path | None = None) -> list[Run]:
    """Read finished runs.

    Args:
        folders: Their folders.
        data_dir: Where data sets are, for sample predictions.

    Raises:
        CheckpointError: A folder holds no finished run, or something in it is damaged.
        DataError: A data set is not in the folder that was given.
    """
    check(folders)
    images = [reading.find_images(folder, data_dir) for folder in folders]
    return [reading.read(folder, found) for folder, found in zip(folders, images, strict=True)]


def write(folders: Sequence[Path], out: Path, data_dir: Path | None = None) -> list[Run]:
    """Read finished runs and write the page about them, which is one file and fetches nothing.

    Args:
        folders: Their folders.
        out: The HTML file.
        data_dir: Where data sets are, for sample predictions.

    Returns:
        What was read.

    Raises:
        CheckpointError: A folder holds no finished run, or something in it is damaged.
        DataError: A data set is not in the folder that was given.
    """
    runs = read(folders, data_dir)
    # A folder's name need not be text; what cannot be written becomes a question mark.
    write_atomically(out, page(runs).encode("utf-8", "replace"))
    return runs
