"""`deepshare study`: the paper's measurements and claims, reproduced."""

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from deepshare.cli.options import Json, check_writable
from deepshare.errors import DeepShareError

RunDir = Annotated[Path, Parameter(help="Folder of a finished run, or a network by name.")]
Out = Annotated[
    Path | None,
    Parameter(
        help="Folder for the results; by default the subfolder study of the (first) run; for a name in runs.",
        show_default=False,
    ),
]

study = App(
    name="study",
    help="""Reproduce the paper's measurements and claims.

Every study prints a table, or all its numbers with --json, and writes three
files: the figure as SVG and as PNG, and the numbers as JSON.""",
)


@study.command
def xor(*, seeds: int = 64, epochs: int = 5_000, out: Path = Path("runs/xor"), as_json: Json = False) -> None:
    """Train four kinds of networks with a single gate on the 2 x 2 checkerboard, and count how many solve it.

    Writes the decision regions as xor.svg and xor.png, and all numbers as
    xor.json. Takes some minutes. Section 5 of the paper.

    Args:
        seeds: Networks of each kind, trained simultaneously.
        epochs: Training epochs.
        out: Folder for the results; created if missing.
    """
    from deepshare.study.xor.experiment import XorSettings, run

    settings = XorSettings(seeds=seeds, epochs=epochs)
    prepare(out, "xor")
    with show_progress("epoch") as progress:
        result = run(settings, progress)
    from deepshare.study.xor.figure import save

    save(result, out, f"deepshare study xor --seeds {seeds} --epochs {epochs} --out {out}")
    print_result(f"{result}\n{result.seconds:.0f} s", out, "xor", as_json)


@study.command
def boundaries(*, out: Path = Path("runs/boundaries"), as_json: Json = False) -> None:
    """Draw the boundaries that a network with one ReLU and any linear neurons can have; none is the checkerboard.

    Writes boundaries.svg, boundaries.png and boundaries.json. Corollary in the
    paper's supplement; see deepshare study xor for networks with one shared
    gate.

    Args:
        out: Folder for the results; created if missing.
    """
    prepare(out, "boundaries")
    from deepshare.study.boundary.figure import as_table, save

    save(out, f"deepshare study boundaries --out {out}")
    print_result(as_table(), out, "boundaries", as_json)


@study.command
def published(*, out: Path = Path("runs/published"), as_json: Json = False) -> None:
    """Draw the paper's tables of methods: accuracy over gates, for each of its networks and data sets.

    Includes finished runs of the same networks, as listed by deepshare recipes.
    Writes published.svg, published.png and published.json. Networks of another
    size, as in deepshare compare, have plots of their own.

    Args:
        out: Folder for the results; created if missing.
    """
    prepare(out, "published")
    from deepshare.study.published.figure import as_table, panels, save

    found = panels()
    save(found, out, f"deepshare study published --out {out}")
    print_result(as_table(found), out, "published", as_json)


@study.command
def dimension(
    run: RunDir,
    /,
    *,
    samples: int = 4096,
    data_dir: Path | None = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Measure how far the gates of a trained network could be shared: across channels, layers and positions.

    For every site: the effective dimension of its gates over its channels,
    against a baseline with positions shuffled; and the correlation of a gate
    with the nearest other channel, with the nearest channel of its group's
    leader, and with its neighbours on the map. Takes any run, plain or shared.

    Writes dimension.svg, dimension.png and dimension.json. Section 3.1 of the
    paper.

    Args:
        samples: Number of training images, without augmentation; all, if there are fewer.
        data_dir: Folder of the data sets.
    """
    from deepshare.study.dimension.analysis import measure, open_run
    from deepshare.training.run.folder import run_folder

    network, images, count = open_run(run_folder(run), samples=samples, data_dir=data_dir)
    folder = prepare(out or beside(run), "dimension")
    with show_progress("image") as progress:
        result = measure(network, images, samples=count, progress=progress)
    from deepshare.study.dimension.figure import save

    save(result, folder, command_of("dimension", run, "--samples", samples), str(run))
    print_result(str(result), folder, "dimension", as_json)


@study.command(usage="Usage: deepshare study affine [OPTIONS] RUN [OTHER]")
def affine(run: RunDir, other: Path | None = None, /, *, out: Out = None, as_json: Json = False) -> None:
    """Draw the affine parameters of a network with shared gates: alpha over beta of every channel, site by site.

    A channel is linear-like if its gate hardly matters: its factors with the
    gate closed and open, beta and alpha + beta, differ by at most a tenth of the
    larger.

    Writes affine.svg, affine.png and affine.json. Supplement E of the paper.

    Args:
        other: A second run to show beside it, such as one with another budget.
    """
    from deepshare.study.affine.parameters import read_run
    from deepshare.training.run.folder import run_folder

    runs = [run] if other is None else [run, other]
    networks = [read_run(run_folder(folder)) for folder in runs]
    folder = prepare(out or beside(run), "affine")
    from deepshare.study.affine.figure import save

    save(networks, folder, command_of("affine", *runs))
    print_result("\n\n".join(map(str, networks)), folder, "affine", as_json)


@study.command(usage="Usage: deepshare study scenes [OPTIONS] RUN...")
def scenes(
    runs: Annotated[list[Path], Parameter(help="Folders of finished segmentation runs, or networks by name.")],
    /,
    *,
    samples: int = 4,
    data_dir: Path | None = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Draw test images with their classes and the predictions of each run, such as a plain and a shared network.

    Writes scenes.svg, scenes.png and scenes.json.

    Args:
        samples: Number of test images, evenly spaced among all of them.
        data_dir: Folder of the data sets.
    """
    from deepshare.study.scenes.comparison import compare
    from deepshare.training.run.folder import run_folder

    found = compare([run_folder(run) for run in runs], samples=samples, data_dir=data_dir)
    folder = prepare(out or beside(runs[0]), "scenes")
    from deepshare.study.scenes.figure import save

    save(found, folder, command_of("scenes", *runs, "--samples", samples))
    print_result(str(found), folder, "scenes", as_json)


def beside(run: Path) -> Path:
    """Folder for the results of a run, unless another is given; a network by name keeps its own folder as it is."""
    return run / "study" if run.exists() else Path("runs") / run / "study"


def command_of(*words: object) -> str:
    """Command that is recorded with a result."""
    return shlex.join(["deepshare", "study", *map(str, words)])


def print_result(text: str, folder: Path, name: str, as_json: bool) -> None:
    """Print the result, or the JSON file that was written with it."""
    print((folder / f"{name}.json").read_text() if as_json else f"{text}\ndrawn in {folder}/{name}.svg")


def prepare(folder: Path, name: str) -> Path:
    """Create the folder of the results if it is missing, and check that it is writable.

    Raises:
        DeepShareError: It cannot be created or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeepShareError(f"cannot create the folder {folder}: {error.strerror}: give another --out") from error
    check_writable(folder / f"{name}.json")
    return folder


@contextmanager
def show_progress(unit: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of a study on stderr: a bar on a terminal, ten lines elsewhere."""
    if not sys.stderr.isatty():
        yield Tenths(unit)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(unit), MofNCompleteColumn(), BarColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("")
        yield lambda done, total: bars.update(bar, completed=done, total=total)


class Tenths:
    """Progress callback that prints a line after every tenth."""

    def __init__(self, unit: str) -> None:
        self.unit, self.tenths = unit, 0

    def __call__(self, done: int, total: int) -> None:
        """Print a line if another tenth is done."""
        if done * 10 // total > self.tenths:
            self.tenths = done * 10 // total
            print(f"{self.unit} {done:,} of {total:,}", file=sys.stderr, flush=True)
