"""Progress of a run. The library prints nothing; whoever wants to show something passes a reporter."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class EpochLine:
    """One epoch, as it is recorded and shown.

    Attributes:
        phase: The phase it belongs to.
        epoch: Counted from 1.
        epochs: Epochs of the phase.
        loss: Mean training loss, all terms.
        accuracy: On the training images as they were augmented.
        val_loss: Cross-entropy on the validation images.
        val_score: Accuracy on the validation images, or mIoU for segmentation.
        score: The name of that figure: `accuracy` or `miou`.
        lr: Learning rate of the last step.
        seconds: Training and validation together.
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
        """The line of `metrics.jsonl`."""
        line = asdict(self)
        measures, score, value = line.pop("measures"), line.pop("score"), line.pop("val_score")
        return {**line, f"val_{score}": value, **measures}


class Reporter:
    """Shows nothing. Override what should be shown."""

    def note(self, text: str) -> None:
        """Something worth a line, such as a network that is taken and not trained."""

    def begin(self, phase: str, epochs: int, first: int) -> None:
        """A phase begins, or resumes at its epoch `first`, counted from 0."""

    def step(self, done: float, loss: float) -> None:
        """Some steps further: the share of the epoch that is done, and its mean loss so far."""

    def epoch(self, line: EpochLine, seconds_left: float) -> None:
        """An epoch ended; about so many seconds are left for the network that is trained now."""

    def end(self) -> None:
        """Nothing more will be told."""
