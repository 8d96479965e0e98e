"""Checkpoints of a run: weights as safetensors files with a header, and the state that an interrupted run resumes from.

Nothing pickled is needed to use a network; the state is read without running anything in it.
"""

import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse
from safetensors.torch import save as dump
from torch import Tensor, nn

from deepshare.errors import CheckpointError
from deepshare.files import write_atomically
from deepshare.sharing.piecewise import REACH
from deepshare.sharing.plan import Plan

Kind = Literal["plain", "gelu", "shared", "masked", "gated"]
Tensors = Mapping[str, Tensor]
STATE_VERSION = 1


@dataclass(frozen=True)
class WeightsHeader:
    """The header of a weights file: the network that it is for.

    Attributes:
        network: Plain network, or one with GELUs, with shared gates, with SNL's masks, or with the gates of another
            method.
        input_size: Size of one input without the batch.
        plan: Checksum of its plan; empty without one.
        own: The network is the user's own, and no recipe can rebuild it.
        reach: Version of what --piecewise-to-relu, --smooth-to-relu and --maxpool reach; 1 in files without it,
            which may also be of 2.
    """

    network: Kind
    input_size: tuple[int, ...]
    plan: str = ""
    own: bool = False
    reach: int = REACH


def plan_checksum(plan: Plan | None) -> str:
    """Return the checksum of a plan in 64 characters; empty for none."""
    return hashlib.sha256(plan.to_json().encode()).hexdigest() if plan else ""


def save_weights(path: Path, model: nn.Module, header: WeightsHeader) -> None:
    """Write a network's weights atomically.

    Raises:
        CheckpointError: The file cannot be written.
    """
    # Copies, since safetensors takes neither tied weights nor other layouts in memory.
    tensors = {
        key: value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for key, value in model.state_dict().items()
    }
    about = {**asdict(header), "checksum": _checksum(tensors)}
    write_file(path, dump(tensors, {"deepshare": json.dumps(about)}))  # one entry, as the order of several is random


def write_file(path: Path, content: bytes) -> None:
    """Write a file of a run folder atomically; the old one stays if that fails."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written ({error.strerror}): what was saved before is kept; make room and resume"
        ) from error


def read_weights(path: Path) -> tuple[dict[str, Tensor], WeightsHeader]:
    """Read a weights file and check that it is intact.

    Raises:
        CheckpointError: The file is missing, damaged or not from a run.
    """
    try:
        content = path.read_bytes()
        tensors = parse(content)
        about = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}): give the folder of a finished run") from error
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged ({error}): restore it or train again") from error
    if "deepshare" not in about:
        raise CheckpointError(f"{path} was not written by deepshare: give it as the weights of a model instead")
    header = json.loads(about["deepshare"])
    if header.pop("checksum", "") != _checksum(tensors):
        raise CheckpointError(f"{path} is damaged (its checksum is wrong): restore it or train again")
    return tensors, WeightsHeader(**{"reach": 1, **header, "input_size": tuple(header["input_size"])})


def fill(model: nn.Module, tensors: Tensors, source: Path) -> None:
    """Load weights into a model, all of them or none.

    Raises:
        CheckpointError: They are the weights of another network; the message names the first differences.
    """
    own = model.state_dict()
    missing = [f"{key} is missing" for key in own if key not in tensors]
    unknown = [f"{key} is unknown" for key in sorted(tensors) if key not in own]
    unequal = [
        f"{key} has shape {tuple(tensors[key].shape)}, not {tuple(own[key].shape)}"
        for key in own
        if key in tensors and tensors[key].shape != own[key].shape
    ]
    if problems := unequal + missing + unknown:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise CheckpointError(f"{source} holds the weights of another network ({'; '.join(problems[:3])}{more})")
    model.load_state_dict(tensors)


def _checksum(tensors: Tensors) -> str:
    digest = hashlib.sha256()
    for key in sorted(tensors):
        digest.update(key.encode())
        digest.update(tensors[key].contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True)
class ResumeState:
    """State of a run after an epoch. Randomness depends only on the seed and the position, so none is stored.

    Attributes:
        phase: Phase of the epoch.
        epochs: Finished epochs of the phase.
        over: The phase is finished.
        lines: Lines of `metrics.jsonl`.
        best: Best score on the validation images so far; None before the first.
        model: Weights and buffers of the network.
        optimiser: State of the optimiser.
        method: State of the method.
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
        """Write the state atomically.

        Raises:
            CheckpointError: The file cannot be written.
        """
        buffer = io.BytesIO()
        torch.save(
            {"version": STATE_VERSION, **{field.name: getattr(self, field.name) for field in fields(self)}}, buffer
        )
        write_file(path, buffer.getvalue())

    @staticmethod
    def load(path: Path) -> "ResumeState":
        """Read a state and check that it is intact; nothing in the file is executed.

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
        if content.pop("version", None) != STATE_VERSION or content.keys() != {
            field.name for field in fields(ResumeState)
        }:
            raise CheckpointError(f"{path} was written by another version of deepshare: resume with that one")
        return ResumeState(**content)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
