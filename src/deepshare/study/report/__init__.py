"""The report: one self-contained HTML page about finished runs.

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
from deepshare.training.run.folder import run_folder

__all__ = ["Run", "check", "page", "read", "write"]


def check(folders: Sequence[Path]) -> None:
    """Check that all folders hold finished runs, before any work.

    Raises:
        CheckpointError: A folder does not, or there are none.
    """
    if not folders:
        raise CheckpointError("there is no run to report on: give the folder of a finished run")
    for folder in folders:
        check_run(folder)


def read(runs: Sequence[Path], data_dir: Path | None = None) -> list[Run]:
    """Read finished runs.

    Args:
        runs: The run folders, or names of trained networks.
        data_dir: Folder of the data sets, for sample predictions.

    Raises:
        CheckpointError: A folder holds no finished run, or a file in it is damaged.
        DataError: A data set is not in the given folder.
    """
    folders = [run_folder(run) for run in runs]
    check(folders)
    images = [reading.find_images(folder, data_dir) for folder in folders]
    return [reading.read(folder, found, str(run)) for folder, found, run in zip(folders, images, runs, strict=True)]


def write(runs: Sequence[Path], out: Path, data_dir: Path | None = None) -> list[Run]:
    """Read finished runs and write one self-contained HTML page about them.

    Args:
        runs: The run folders, or names of trained networks.
        out: The HTML file.
        data_dir: Folder of the data sets, for sample predictions.

    Returns:
        The runs.

    Raises:
        CheckpointError: A folder holds no finished run, or a file in it is damaged.
        DataError: A data set is not in the given folder.
    """
    found = read(runs, data_dir)
    # A folder name need not be valid UTF-8; other bytes become question marks.
    write_atomically(out, page(found).encode("utf-8", "replace"))
    return found
