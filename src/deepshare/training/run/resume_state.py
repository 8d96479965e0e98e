"""What a run needs to go on after it was interrupted."""

import io
import pickle
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepshare.errors import CheckpointError
from deepshare.training.run.weights import write_file

VERSION = 1


@dataclass(frozen=True)
class State:
    """A run after some epoch. All randomness follows from the seed and the position, so none of it is here.

    Attributes:
        phase: The phase of that epoch.
        epochs: Epochs of the phase that are done.
        over: Whether the phase is over with it.
        lines: Lines in the record of metrics.
        best: The best score on the validation images so far; None as long as there is none.
        model: The network's weights and buffers.
        optimiser: The optimiser's state.
        method: What the method remembers.
    """

    phase: str
    epochs: int
    over: bool
    lines: int
    best: float | None
    model: dict[str, Tensor]
    optimiser: dict[str, Any]
    method: dict[str, float]

    def save(self, path: Path) -> None:
        """Write the state, whole or not at all.

        Raises:
            CheckpointError: The file cannot be written.
        """
        buffer = io.BytesIO()
        torch.save({"version": VERSION, **{field.name: getattr(self, field.name) for field in fields(self)}}, buffer)
        write_file(path, buffer.getvalue())

    @staticmethod
    def load(path: Path) -> "State":
        """Read a state and check that it is whole; nothing in the file is run.

        Raises:
            CheckpointError: The file is damaged or of another version.
        """
        try:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
            content = None if damaged else torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
            raise CheckpointError(f"{path} is damaged ({_first_line(error)}): train again in a new folder") from error
        if not isinstance(content, dict):
            raise CheckpointError(f"{path} is damaged: train again in a new folder")
        if content.pop("version", None) != VERSION or content.keys() != {field.name for field in fields(State)}:
            raise CheckpointError(f"{path} was written by another version of deepshare: resume with that one")
        return State(**content)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
