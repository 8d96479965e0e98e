"""Who is at which run: one lock for each, so that many processes can be at the runs of one study."""

from pathlib import Path

from filelock import FileLock, Timeout

from deepshare.study.compare.definition import Job

FOLDER = "locks"


def lock_of(work: Path, job: Job) -> FileLock:
    """The lock of a run; whoever holds it may write into its run folder. Its end, however it comes, frees it."""
    folder = work / FOLDER
    folder.mkdir(exist_ok=True)
    return FileLock(folder / f"{job.name}.lock")


def is_held(work: Path, job: Job) -> bool:
    """Whether somebody is at a run; leaves no trace of looking."""
    if not (work / FOLDER / f"{job.name}.lock").exists():
        return False
    try:
        with lock_of(work, job).acquire(timeout=0):
            return False
    except Timeout:
        return True
