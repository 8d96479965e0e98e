"""Curves of a run for TensorBoard, beside another reporter."""

from pathlib import Path

from deepshare.errors import DeepShareError
from deepshare.training.reporter import EpochLine, Reporter


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
        self.note, self.begin, self.step = inner.note, inner.begin, inner.step  # type: ignore[method-assign]

    def epoch(self, line: EpochLine, seconds_left: float) -> None:
        from torch.utils.tensorboard import SummaryWriter

        record = line.record()
        # Opened for each epoch, so that a run that is killed leaves whole files behind.
        with SummaryWriter(str(self.folder / line.phase)) as writer:
            for key, value in record.items():
                if isinstance(value, float):
                    writer.add_scalar(key, value, line.epoch)
        self.inner.epoch(line, seconds_left)

    def end(self) -> None:
        self.inner.end()
