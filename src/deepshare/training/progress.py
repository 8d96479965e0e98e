"""Progress of a run: bars on a terminal, one line per epoch elsewhere."""

import sys
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from deepshare.training.reporter import EpochLine, Reporter


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
