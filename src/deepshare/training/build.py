"""The networks of a recipe: as built, with GELU at every site, and read back from files."""

import copy
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from deepshare import zoo
from deepshare.data.seeds import seed_of
from deepshare.errors import CheckpointError, DataError, UnsupportedModelError, reason
from deepshare.methods.deepshare import trim
from deepshare.methods.square import curve
from deepshare.sharing.convert import relu6_to_relu, replace_sites, share
from deepshare.sharing.plan import Plan
from deepshare.sharing.sites import find_sites
from deepshare.training.method_factory import finished_form
from deepshare.training.recipe.files import Recipe, load_recipe
from deepshare.training.recipe.sections import Model
from deepshare.training.run.folder import RunFolder
from deepshare.training.run.weights import Kind, fill, plan_checksum, read_weights
from deepshare.training.shared_models import unshared
from deepshare.zoo.deeplab import DeepLabV3
from deepshare.zoo.mobilenet import COUNTER, backbone_weights, is_torchvisions

# What torch.load and safetensors raise for a file that is none of theirs.
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
STATE_DICT = "give a safetensors file, or the model's weights alone, by torch.save(model.state_dict(), FILE)"


def plain_network(recipe: Recipe, role: str, tell: Callable[[str], None] | None = None) -> nn.Module:
    """Build the network that a recipe names for a role; its random weights depend on the seed and on the role.

    Args:
        recipe: Names it, and the weights that it starts from if there are any.
        role: What it is for.
        tell: Is told if weights that were given leave a part of the network random.
    """
    wanted = recipe.model_of(role)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(recipe.seed, "start", role))
        model = build(wanted)
    if wanted.weights:
        left = start_from(model, Path(wanted.weights), wanted.num_classes)
        if left and tell:
            tell(f"weights from {wanted.weights}; still random: {', '.join(left)}")
    return model


def build(wanted: Model) -> nn.Module:
    """Build a network as a recipe describes it, with random weights."""
    model = zoo.build(wanted.name, num_classes=wanted.num_classes, **wanted.arguments)
    return relu6_to_relu(model) if wanted.relu6_to_relu else model


def output_shape(model: nn.Module, input_size: tuple[int, ...]) -> torch.Size:
    """The shape of what a network gives for one image.

    Raises:
        DataError: It does not take images of this size.
        UnsupportedModelError: It gives something else than one tensor.
    """
    twin = copy.deepcopy(model).to("meta").eval()
    try:
        with torch.no_grad():
            output = twin(torch.zeros(1, *input_size, device="meta"))
    except Exception as error:  # libraries assert what they need
        size = "x".join(map(str, input_size))
        raise DataError(
            f"{type(model).__name__} does not take images of {size} ({reason(error)}): change data.image_size, "
            "or the network's own arguments, such as --model.arguments.channels 1"
        ) from error
    if not isinstance(output, torch.Tensor):
        kind = type(output).__name__
        raise UnsupportedModelError(f"{type(model).__name__} returns a {kind}: wrap it so that it returns logits")
    return output.shape


def layout_of(model: nn.Module) -> torch.memory_format:
    """The layout in memory that a network is trained in: channels last, a quarter faster on a CPU, where that is safe.

    With it, the backward of oneDNN's strided 1x1 convolution writes past its buffer where there are fewer channels than
    in one of its blocks (oneDNN issue 6035): 8 with AVX2, 16 with AVX-512.
    """
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    unsafe = any(
        c.kernel_size == (1, 1) and c.stride != (1, 1) and c.in_channels // c.groups < 16 for c in convolutions
    )
    return torch.contiguous_format if unsafe or not convolutions else torch.channels_last


def lay_out(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    """Lay the weights of convolutions out in memory."""
    for weight in model.parameters():
        if weight.ndim == 4:
            # A 1x1 kernel is laid out both ways at once; what is new has the strides that gradients will have.
            weight.data = torch.empty_like(weight.data, memory_format=layout).copy_(weight.data)
    return model


def gelu_network(model: nn.Module, input_size: Sequence[int]) -> nn.Module:
    """Make a copy of a network with GELU in the place of every ReLU."""
    return replace_sites(model, find_sites(model, input_size), lambda site: nn.GELU())


def start_from(model: nn.Module, path: Path, classes: int) -> list[str]:
    """Load weights that a network starts from.

    Args:
        model: The network.
        path: A run folder of the same network, a safetensors file or a file of torch.save with a state_dict; for
            DeepLabV3 also those of torchvision's MobileNetV2, its backbone.
        classes: The network's outputs. A last layer of another number of classes is left as it is.

    Returns:
        The parts of the network that are left as they are.

    Raises:
        CheckpointError: The file cannot be read or holds the weights of another network.
    """
    tensors, network = _read_run(path) if path.is_dir() else (_read_any(path), "plain")
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
    """What belongs to a last layer that has another number of classes in a file."""
    head = {
        key: value
        for key, value in own.items()
        if key in tensors and len(value.shape) and len(value) == classes and value.shape[1:] == tensors[key].shape[1:]
    }
    return {key: value for key, value in head.items() if value.shape != tensors[key].shape}


def _read_run(path: Path) -> tuple[dict[str, Tensor], str]:
    tensors, label = read_weights(RunFolder(path).model)
    return dict(tensors), label.network


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
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise CheckpointError(f"{path} holds no state_dict: {STATE_DICT}")
    return content


def load(folder: str | Path, *, model: nn.Module | None = None, best: bool = False) -> nn.Module:
    """Rebuild the network of a finished run from its folder alone.

    Args:
        folder: The run folder.
        model: The network as it was given to `fit`, if it was the user's own, plain or shared; it is not touched.
        best: Whether to take the weights that were best on the validation images instead of the last.

    Returns:
        The network, on the CPU and ready for inference.

    Raises:
        CheckpointError: The folder is unfinished, damaged, from another plan or no run folder.
    """
    run = RunFolder(Path(folder))
    check_finished(run)
    path = run.best if best else run.model
    if not path.is_file():
        raise CheckpointError(f"{path} is not there: take the last weights instead of the best, or put it back")
    tensors, label = read_weights(path)
    if label.network == "shared" and not run.plan.is_file():
        raise CheckpointError(f"{run.path} has lost its {run.plan.name}: restore it from a copy of the run")
    plan = Plan.load(run.plan) if label.network == "shared" else None
    if label.plan != plan_checksum(plan):
        raise CheckpointError(f"{path} was trained with another plan than {run.plan}: restore the plan of the run")
    if model is None and label.own:
        raise CheckpointError(
            f"{run.path} was trained from a model of your own: give it in Python, deepshare.load(RUN, model=...)"
        )
    recipe = load_recipe(run.recipe)
    base = _build(recipe, label.network) if model is None else unshared(model)
    network = convert(base, label.network, label.input_size, plan)
    if label.network == "gated":
        network = finished_form(recipe, base, label.input_size)
    elif recipe.trimmed:
        trim(network)
    elif label.network == "shared" and recipe.method.square:
        curve(network)
    fill(network, tensors, path)
    return network.eval()


def convert(model: nn.Module, kind: Kind, input_size: Sequence[int], plan: Plan | None) -> nn.Module:
    """Make a plain network into the kind of network that a weights file is for."""
    if plan is not None:
        return share(model, plan)
    return gelu_network(model, input_size) if kind == "gelu" else model


def _build(recipe: Recipe, kind: Kind) -> nn.Module:
    roles: dict[Kind, str] = {"gelu": "teacher", "plain": "plain"}
    return build(recipe.model_of(roles.get(kind, "result")))


def check_finished(run: RunFolder) -> None:
    """See whether a folder holds a trained network.

    Raises:
        CheckpointError: It is no run folder, its run is not finished, or its weights were not kept.
    """
    if not run.path.is_dir():
        raise CheckpointError(f"there is no folder {run.path}: give the folder of a finished run")
    if not run.recipe.is_file():
        raise CheckpointError(f"{run.path} is no run folder (it has no recipe.toml): give the folder of a finished run")
    if not run.model.is_file() and run.result.is_file():
        raise CheckpointError(
            f"{run.path} is finished, but its weights are not there: put {run.model.name} back into it"
        )
    if not run.model.is_file():
        raise CheckpointError(f"the run in {run.path} is not finished: finish it with deepshare train --resume")
