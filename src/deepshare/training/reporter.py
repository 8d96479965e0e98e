"""Progress of a run: a reporter shows it, and the library itself prints nothing; curves for TensorBoard."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
