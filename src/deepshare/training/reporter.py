"""Reporters show the progress of a run: as bars, as lines, as curves for TensorBoard, or not at all."""

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from deepshare.errors import DeepShareError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


@dataclass(frozen=True)
class EpochLine:
    """Figures of one epoch.

    Attributes:
        phase: Phase of the epoch.
        epoch: Epoch, counted from 1.
        epochs: Epochs of the phase.
        loss: Mean training loss, all terms.
        accuracy: Accuracy on the augmented training images.
        val_loss: Cross-entropy on the validation images.
        val_score: Accuracy on the validation images, or mIoU for segmentation.
        score: Name of that figure: `accuracy` or `miou`.
        lr: Learning rate of the last step.
        seconds: Time of training and validation.
        measures: Figures of the method, such as the share of hard gates.
    """

    phase: str
    epoch: int
    epochs: int
    loss: float
    accuracy: float
    val_loss: float
    val_score: float
    score: str
    lr: float
    seconds: float
    measures: dict[str, float] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return the line of `metrics.jsonl`."""
        line = asdict(self)
        measures, score, value = line.pop("measures"), line.pop("score"), line.pop("val_score")
        return {**line, f"val_{score}": value, **measures}


class Reporter:
    """Shows nothing; override the methods of interest."""

    def note(self, text: str) -> None:
        """Show a message, such as that a finished network is used."""

    def begin(self, phase: str, epochs: int, first: int) -> None:
        """Show that a phase begins, or resumes at its epoch `first`, counted from 0."""

    def step(self, done: float, loss: float) -> None:
        """Show progress within an epoch: the share that is done, and the mean loss so far."""

    def epoch(self, line: EpochLine, seconds_left: float) -> None:
        """Show a finished epoch, and an estimate of the seconds left for the current network."""

    def end(self) -> None:
        """End the display."""


def make_reporter(stream: TextIO | None = None) -> Reporter:
    """Return bars for a terminal and lines for any other stream; stderr by default."""
    stream = stream or sys.stderr
    return Bars(stream) if stream.isatty() else Lines(stream)


class Lines(Reporter):
    """One line per epoch."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def note(self, text: str) -> None:
        """Print a note."""
        print(text, file=self.stream, flush=True)

    def epoch(self, line: EpochLine, seconds_left: float) -> None:
        """Print the figures of an epoch."""
        said = f"{line.phase} {line.epoch}/{line.epochs}  {describe(line)}  lr {line.lr:.2g}"
        self.note(f"{said}  {line.seconds:.1f} s  left {duration(seconds_left)}")


class Bars(Reporter):
    """One bar per phase."""

    def __init__(self, stream: TextIO) -> None:
        columns = (TextColumn("{task.fields[phase]:>8}"), BarColumn(8), TextColumn("{task.fields[said]}"))
        self.progress = Progress(*columns, console=Console(file=stream))
        self.bar = TaskID(0)
        self.done = 0
        self.left = ""

    def note(self, text: str) -> None:
        """Print a note above the bars."""
        self.progress.console.print(text, highlight=False)

    def begin(self, phase: str, epochs: int, first: int) -> None:
        """Add a bar."""
        self.progress.start()
        self.done = first
        self.bar = self.progress.add_task("", total=epochs, completed=first, phase=phase, said="")

    def step(self, done: float, loss: float) -> None:
        """Advance the bar within the epoch."""
        said = f"{self.done + 1} loss {loss:.3f}{self.left}"
        self.progress.update(self.bar, completed=self.done + done, said=said)

    def epoch(self, line: EpochLine, seconds_left: float) -> None:
        """Advance the bar to the end of the epoch."""
        self.done = line.epoch
        self.left = f" left {duration(seconds_left)}"
        hard = f" hard {line.measures['hard_share']:.0%}" if "hard_share" in line.measures else ""
        figures = f"loss {line.loss:.3f} acc {line.accuracy:.1%} val {line.val_score:.1%}{hard}"
        said = f"{line.epoch}/{line.epochs} {figures}{self.left}"
        self.progress.update(self.bar, completed=line.epoch, said=said)

    def end(self) -> None:
        """Stop the display and leave the bars visible."""
        self.progress.stop()


def describe(line: EpochLine) -> str:
    """Format the figures of an epoch."""
    hard = f"  hard gates {line.measures['hard_share']:.0%}" if "hard_share" in line.measures else ""
    gates = f"  gates {line.measures['gates']:,.0f}" if "gates" in line.measures else ""
    return f"loss {line.loss:.3f}  accuracy {line.accuracy:.2%}  validation {line.val_score:.2%}{hard}{gates}"


def duration(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds.

    >>> duration(3725)
    '1:02:05'
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def with_tensorboard(reporter: Reporter, folder: Path) -> Reporter:
    """Add TensorBoard to a reporter; its files go into the run folder.

    Raises:
        DeepShareError: TensorBoard is not installed.
    """
    try:
        import tensorboard  # noqa: F401
    except ImportError as error:
        raise DeepShareError("tensorboard is not installed: pip install deepshare[tensorboard]") from error
    return _TensorBoard(reporter, folder)


class _TensorBoard(Reporter):
    def __init__(self, inner: Reporter, folder: Path) -> None:
        self.inner, self.folder = inner, folder / "tensorboard"
        self.writer: SummaryWriter | None = None
        self.note, self.begin, self.step = inner.note, inner.begin, inner.step  # type: ignore[method-assign]

    def epoch(self, line: EpochLine, seconds_left: float) -> None:
        from torch.utils.tensorboard import SummaryWriter

        if self.writer is None:  # one file for all phases: a tag names its phase
            self.writer = SummaryWriter(str(self.folder))
        for key, value in line.record().items():
            if isinstance(value, float):
                self.writer.add_scalar(f"{line.phase}/{key}", value, line.epoch)
        self.writer.flush()  # so that a run that is killed leaves its epochs behind
        self.inner.epoch(line, seconds_left)

    def end(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.inner.end()
