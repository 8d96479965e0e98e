"""Weights that a network starts from: run folders, safetensors files, saved state_dicts, torchvision's backbones."""

import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from deepshare.errors import CheckpointError
from deepshare.training.run.checkpoint import fill, read_weights
from deepshare.training.run.folder import RunFolder
from deepshare.zoo.deeplab import DeepLabV3
from deepshare.zoo.mobilenet import COUNTER, backbone_weights, is_torchvisions

# Exceptions of torch.load and safetensors for other files.
DAMAGED = (
    SafetensorError,
    pickle.UnpicklingError,
    RuntimeError,
    EOFError,
    ValueError,
    KeyError,
    IndexError,
    AttributeError,
)
_WRAPPERS = ("state_dict", "model_state_dict", "model")  # what training scripts put around a state_dict
_PREFIXES = ("module.", "_orig_mod.")
STATE_DICT = "give a safetensors file, or the model's weights alone, by torch.save(model.state_dict(), FILE)"


def start_from(model: nn.Module, path: Path, classes: int) -> list[str]:
    """Load start weights into a network.

    Args:
        model: The network.
        path: Run folder of the same network, safetensors file, or state_dict saved by torch.save; for DeepLabV3 also a
            backbone, torchvision's MobileNetV2.
        classes: Number of outputs. A last layer with another number is not loaded.

    Returns:
        Parts of the network that were not loaded.

    Raises:
        CheckpointError: The file cannot be read or holds the weights of another network.
    """
    tensors, network = _read_run(path) if path.is_dir() else (_bare(_read_any(path)), "plain")
    for key, value in tensors.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise CheckpointError(f"{path}: its {key} holds numbers that are not finite: give weights from before that")
    own = model.state_dict()
    if isinstance(model, DeepLabV3) and is_torchvisions(tensors):
        try:
            tensors = backbone_weights(model, tensors)
        except CheckpointError as error:
            raise CheckpointError(f"{path} holds {error}") from error
        new = {key: value for key, value in own.items() if key not in tensors}
    else:
        new = _head(own, tensors, classes)
    try:
        fill(model, {**tensors, **new}, path)
    except CheckpointError as error:
        if network in ("plain", "gelu"):
            raise
        cure = f"give {path / 'plain'}" if (path / "plain").is_dir() else "give a plain one"
        raise CheckpointError(f"{path} is the run of a {network} network, and a plain one is wanted: {cure}") from error
    return list(dict.fromkeys(key.partition(".")[0] for key in new if not key.endswith(COUNTER)))


def _head(own: dict[str, Tensor], tensors: dict[str, Tensor], classes: int) -> dict[str, Tensor]:
    """Return the tensors of a last layer that has another number of classes in a file."""
    head = {
        key: value
        for key, value in own.items()
        if key in tensors and len(value.shape) and len(value) == classes and value.shape[1:] == tensors[key].shape[1:]
    }
    return {key: value for key, value in head.items() if value.shape != tensors[key].shape}


def _read_run(path: Path) -> tuple[dict[str, Tensor], str]:
    tensors, header = read_weights(RunFolder(path).model)
    return dict(tensors), header.network


def _read_any(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error}): {STATE_DICT}") from error
    except DAMAGED as error:
        raise CheckpointError(
            f"{path} holds no state_dict (it is damaged, or has a whole model): {STATE_DICT}"
        ) from error
    for name in _WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    if not isinstance(content, dict) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise CheckpointError(f"{path} holds no state_dict: {STATE_DICT}")
    return content


def _bare(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the prefixes of DistributedDataParallel and torch.compile from keys that all have them."""
    for prefix in _PREFIXES * 2:
        if all(key.startswith(prefix) for key in tensors):
            tensors = {key.removeprefix(prefix): value for key, value in tensors.items()}
    return tensors
