"""`deepshare study`: what the paper measures and argues, measured again."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cyclopts import App

from deepshare.cli.options import Json, check_writable
from deepshare.errors import DeepShareError

study = App(name="study", help="Measure again what the paper measures and argues.")


@study.command
def xor(*, seeds: int = 64, epochs: int = 5_000, out: Path = Path("runs/xor"), as_json: Json = False) -> None:
    """Train four kinds of networks with a single gate on the 2 x 2 checkerboard, and see how many of each solve it.

    Writes the decision regions as xor.svg and xor.png, and all numbers as xor.json.

    Args:
        seeds: Networks of each kind, all trained at once.
        epochs: Epochs of training.
        out: Folder for the results; it is made if need be.
    """
    from deepshare.study.xor import Settings, run

    settings = Settings(seeds=seeds, epochs=epochs)
    make_folder(out)
    check_writable(out / "xor.json")
    with show_epochs() as progress:
        result = run(settings, progress)
    from deepshare.study.xor_figure import save

    save(result, out, f"deepshare study xor --seeds {seeds} --epochs {epochs} --out {out}")
    print((out / "xor.json").read_text() if as_json else f"{result}\n{result.seconds:.0f} s; drawn in {out}/xor.svg")


def make_folder(folder: Path) -> None:
    """Make a folder unless it is there.

    Raises:
        DeepShareError: Says what stands in the way.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeepShareError(f"cannot make the folder {folder}: {error.strerror}: give another --out") from error


@contextmanager
def show_epochs() -> Iterator[Callable[[int, int], None]]:
    """Show how far a study is, on stderr: a bar on a terminal, ten lines anywhere else."""
    if not sys.stderr.isatty():
        yield print_tenths
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("epoch"), MofNCompleteColumn(), BarColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("")
        yield lambda done, epochs: bars.update(bar, completed=done, total=epochs)


def print_tenths(done: int, epochs: int) -> None:
    """Print a line after each tenth of the epochs."""
    if done * 10 // epochs > (done - 1) * 10 // epochs:
        print(f"epoch {done:,} of {epochs:,}", file=sys.stderr, flush=True)
