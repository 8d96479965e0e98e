"""Recording of every ReLU call, the layers that feed it, and all other comparisons in one run of a meta copy.

Running the network finds what inspecting its modules cannot: functions, modules called twice, calls in any order.
Nothing is computed: tensors on the meta device only have shapes.
"""

import copy
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from deepshare.errors import UnsupportedModelError, reason

# A batch of two distinguishes the batch dimension from a map of height one.
BATCH = 2

# The outline of a call's arguments; see `_outline`.
Inputs = tuple[tuple[Any, ...], dict[str, Any]]

RELU_FUNCTIONS = frozenset({F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_})
ADD_FUNCTIONS = frozenset({torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__})

# Comparisons for each element of the output.
_PER_ELEMENT = {
    "relu6": 2,
    "hardtanh": 2,
    "hardswish": 2,
    "hardsigmoid": 2,
    "leaky_relu": 1,
    "prelu": 1,
    "rrelu": 1,
    "elu": 1,
    "selu": 1,
    "celu": 1,
    "threshold": 1,
    "clamp_min": 1,
    "clamp_max": 1,
    "maximum": 1,
    "minimum": 1,
    "sign": 1,
    "abs": 1,
    "hardshrink": 2,
    "softshrink": 2,
    **dict.fromkeys(("ge", "gt", "le", "lt", "__ge__", "__gt__", "__le__", "__lt__"), 1),
}
_REDUCTIONS = frozenset({"max", "min", "amax", "amin", "argmax", "argmin"})
_SMOOTH = frozenset({"silu", "gelu", "mish", "softplus", "sigmoid", "tanh"})
_LOOKS_ONLY = frozenset({"__get__", "size", "dim", "__len__"})
# Operations, besides ReLU, that end the tracking of a layer's output: activations and functional layers.
_ENDS = frozenset(
    {
        *("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("relu6", "hardtanh", "hardswish", "hardsigmoid", "leaky_relu", "prelu", "rrelu", "elu", "selu", "celu"),
        *("gelu", "silu", "mish", "sigmoid", "logsigmoid", "tanh", "softplus", "softsign", "softmax", "threshold"),
    }
)


def check_original(model: nn.Module) -> None:
    """Refuse a module that torch has compiled: its parts cannot be seen.

    Raises:
        UnsupportedModelError: It is one.
    """
    if isinstance(model, torch.jit.ScriptModule) or hasattr(model, "_orig_mod"):
        raise UnsupportedModelError(f"{type(model).__name__} is already compiled: give the original module")


@dataclass(frozen=True)
class Call:
    """One ReLU call.

    Attributes:
        caller: Path of the module whose forward made the call ("" is the model itself).
        relu: Path of the nn.ReLU module; None for a function call.
        shape: Shape of the input without the batch.
        layers: Paths of the convolutions and linear layers whose outputs it reads, directly or through normalisation,
            pooling, sums and anything else but another layer or activation.
        rewrites: The call is in place on a tensor that is read again afterwards.
    """

    caller: str
    relu: str | None
    shape: tuple[int, ...]
    layers: tuple[str, ...]
    rewrites: bool


@dataclass(frozen=True)
class Comparison:
    """Another operation that compares: max-pooling, ReLU6, hard-swish and similar."""

    name: str
    what: str
    comparisons: int


@dataclass(frozen=True)
class Observation:
    """Record of one forward pass.

    `maps` has the size of each module's map, by its path; `smooth` the calls of smooth activations, with their callers.
    """

    calls: tuple[Call, ...]
    others: tuple[Comparison, ...]
    runs: dict[str, int]
    inputs: dict[str, Inputs]
    adds: frozenset[str]
    order: tuple[str, ...]
    maps: dict[str, tuple[int, ...]]
    smooth: tuple[tuple[str, str], ...] = ()


def observe(model: nn.Module, input_size: Sequence[int]) -> Observation:
    """Run a meta copy of the model once, in eval mode, and record the run.

    Raises:
        UnsupportedModelError: The model does not run on this input size.
    """
    size = check_input_size(input_size)
    name = type(model).__name__
    check_original(model)
    ghost = meta_copy(model).eval()
    recorder = _Recorder(ghost)
    try:
        with torch.no_grad(), torch.device("meta"), recorder:
            result = ghost(torch.empty(BATCH, *size, dtype=like(ghost).dtype))
    except UnsupportedModelError:
        raise
    except Exception as error:
        shape, cure = "x".join(map(str, size)), other_channels(model, size) or _cure(error)
        raise UnsupportedModelError(
            f"{name} does not run on an input of size {shape} ({reason(error)}): {cure}"
        ) from error
    recorder.note_rereads(result)
    return recorder.observation()


def like(model: nn.Module) -> Tensor:
    """Return a tensor with the device and dtype of the model's weights."""
    return next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))


def image_channels(model: nn.Module) -> int | None:
    """Channels that the first convolution of a network takes."""
    return next((module.in_channels for module in model.modules() if isinstance(module, nn.Conv2d)), None)


def other_channels(model: nn.Module, size: Sequence[int]) -> str | None:
    """Cure for inputs of another shape than the first convolution takes; None where that is not it."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            if len(size) != 3:
                return (
                    f"{path or 'it'} takes images (N, C, H, W): give the batch first, and (C, H, W) as the input size"
                )
            takes, has = module.in_channels, size[0]
            if takes == has:
                return None
            kinds = {1: "grey", 3: "colour"}
            return (
                f"{path or 'it'} takes {takes} channels and the images have {has}: give {kinds.get(takes, 'other')} "
                f"images, or build the network for {has} (--model.arguments.channels {has}; with timm in_chans)"
            )
    return None


def _cure(error: Exception) -> str:
    if "meta tensor" in str(error).lower() or isinstance(error, NotImplementedError):
        return "its forward may depend on shapes but not on values"
    return "give the input size that the network was built for"


def check_input_size(input_size: Sequence[int]) -> tuple[int, ...]:
    """Validate an input size without the batch and return it as a tuple."""
    size = tuple(input_size) if isinstance(input_size, Sequence) else (input_size,)
    if not 1 <= len(size) <= 3 or not all(isinstance(n, int) and n > 0 for n in size):
        raise UnsupportedModelError(
            f"input size {size} is not one of (channels, height, width) or (features,): "
            "leave the batch out and give positive whole numbers, such as (3, 32, 32); volumes, with three-dimensional "
            "convolutions, are not supported"
        )
    return size


def meta_copy(model: nn.Module) -> nn.Module:
    """Copy a model to the meta device without copying its weights."""
    memo: dict[int, Any] = {}
    loose = (value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor))
    for tensor in chain(model.parameters(), model.buffers(), loose):
        if is_lazy(tensor):
            raise UnsupportedModelError(f"{type(model).__name__} has lazy layers: run it once first")
        ghost = tensor.detach().to("meta")
        memo[id(tensor)] = nn.Parameter(ghost, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else ghost
    return copy_of(model, memo)


def copy_of(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a deep copy.

    Raises:
        UnsupportedModelError: The model holds an object that cannot be copied.
    """
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be copied ({reason(error)}): delete state that it keeps from an earlier run"
        ) from error


def is_plain_relu(module: nn.Module) -> bool:
    """Return True for nn.ReLU and subclasses that keep its forward."""
    return isinstance(module, nn.ReLU) and type(module).forward is nn.ReLU.forward


def is_layer(module: nn.Module) -> bool:
    """Return True for a convolution or linear layer whose weight is a parameter of its own."""
    return isinstance(module, _ConvNd | nn.Linear) and "weight" in dict(module.named_parameters(recurse=False))


class _Recorder(TorchFunctionMode):
    """Records one forward pass; what depends on parameters alone is the same for all images, and not looked at."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
        self.stack: list[nn.Module] = []
        self.runs: Counter[str] = Counter()
        self.inputs: dict[str, Inputs] = {}
        self.order: list[str] = []
        self.maps: dict[str, tuple[int, ...]] = {}
        self.adds: set[str] = set()
        self.calls: list[tuple[str, str | None, tuple[int, ...], tuple[str, ...]]] = []
        self.others: list[Comparison] = []
        self.smooth: list[tuple[str, str]] = []
        self.rewritten: dict[int, tuple[Tensor, int]] = {}
        self.rereads: set[int] = set()
        self.fixed: dict[int, Tensor] = {id(t): t for t in chain(model.parameters(), model.buffers())}
        self.layers: dict[int, tuple[Tensor, tuple[str, ...]]] = {}  # holds the tensor, so that its id is not reused
        for module in self.names:
            module.register_forward_pre_hook(self._enter, with_kwargs=True)
            module.register_forward_hook(self._leave)

    def observation(self) -> Observation:
        calls = tuple(Call(*call, rewrites=i in self.rereads) for i, call in enumerate(self.calls))
        adds, order = frozenset(self.adds), tuple(self.order)
        others, smooth = tuple(self.others), tuple(self.smooth)
        return Observation(calls, others, dict(self.runs), self.inputs, adds, order, self.maps, smooth)

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.stack.append(module)
        self.runs[self.names[module]] += 1
        self.inputs[self.names[module]] = _outline(args), _outline(kwargs)
        self.order.append(self.names[module])
        if args and isinstance(args[0], Tensor):
            self.maps[self.names[module]] = tuple(args[0].shape[2:])

    def _leave(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        self.stack.pop()
        if is_layer(module):
            self._feed(result, (self.names[module],))

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self.rewritten and name not in _LOOKS_ONLY:
            self.note_rereads((args, kwargs))
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        fixed = bool(tensors) and all(id(tensor) in self.fixed for tensor in tensors)
        if func in RELU_FUNCTIONS and not fixed:
            return self._relu(func, *args, **kwargs)
        result = _normalised(*args, **kwargs) if func is F.batch_norm else func(*args, **kwargs)
        if fixed:
            self.fixed |= {id(leaf): leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}
            return result
        self._feed(result, () if name.rstrip("_") in _ENDS else self._layers_of((args, kwargs)))
        if name.strip("_") in _SMOOTH:
            self.smooth.append((self._caller(), name.strip("_")))
        if func in ADD_FUNCTIONS and sum(isinstance(a, Tensor) and a.dim() >= 3 for a in args) == 2:
            self.adds.add(self._caller())
        elif isinstance(result, Tensor | tuple):
            self._note_comparison(name.strip("_") if not name.startswith("__") else name, args, kwargs, result)
        return result

    def _caller(self) -> str:
        return self.names[self.stack[-1]]

    def _relu(self, func: Any, x: Tensor, inplace: bool = False) -> Tensor:
        inside = is_plain_relu(self.stack[-1])
        relu = self._caller() if inside else None
        callers = self.stack[:-1] if inside else self.stack
        if x.shape[0] != BATCH:
            raise UnsupportedModelError(
                f"{relu or self._caller()}: its ReLU sees a tensor of shape {tuple(x.shape)} whose first dimension is "
                "not the batch: keep the batch first"
            )
        self.calls.append((self.names[callers[-1]] if callers else "", relu, tuple(x.shape[1:]), self._layers_of(x)))
        if inplace or func in (torch.relu_, Tensor.relu_):
            # The model continues with a new tensor; any later use of the old one reads the result of the ReLU.
            self.rewritten[x.untyped_storage()._cdata] = (x, len(self.calls) - 1)
            self._feed(x, ())
        return torch.empty_like(x)

    def _feed(self, result: Any, layers: tuple[str, ...]) -> None:
        self.layers |= {id(leaf): (leaf, layers) for leaf in tree_leaves(result) if isinstance(leaf, Tensor)}

    def _layers_of(self, values: Any) -> tuple[str, ...]:
        known = (self.layers[id(leaf)][1] for leaf in tree_leaves(values) if id(leaf) in self.layers)
        return tuple(dict.fromkeys(chain.from_iterable(known)))

    def note_rereads(self, values: Any) -> None:
        """Record tensors among the values that a ReLU has overwritten."""
        for leaf in tree_leaves(values):
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided:
                seen = self.rewritten.get(leaf.untyped_storage()._cdata)
                if seen is not None:
                    self.rereads.add(seen[1])

    def _note_comparison(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if name in ("max", "min") and any(isinstance(other, Tensor) for other in (*args[1:2], kwargs.get("other"))):
            name += "imum"
        count = sum(_comparisons(name, args, kwargs, result))
        if count:
            bounded = name == "hardtanh" and self.stack and isinstance(self.stack[-1], nn.ReLU6)
            self.others.append(Comparison(self._caller(), "relu6" if bounded else name.strip("_"), count // BATCH))


def _normalised(input: Tensor, running_mean: Tensor | None = None, *rest: Any, **others: Any) -> Tensor:
    """The result of batch normalisation, which torch itself derives in many slow steps on the meta device."""
    if running_mean is not None and input.dim() > 1 and running_mean.shape == input.shape[1:2]:
        return torch.empty_like(input)
    return F.batch_norm(input, running_mean, *rest, **others)


def _outline(value: Any) -> Any:
    """Keep the containers and Nones of a value and replace everything else by an ellipsis."""
    if isinstance(value, dict):
        return {key: _outline(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_outline(item) for item in value)
    return None if value is None else ...


def _comparisons(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Iterator[int]:
    """Comparisons of one call, by the elements of its output or input."""
    out = result[0] if isinstance(result, tuple) and result and isinstance(result[0], Tensor) else result
    source = args[0] if args and isinstance(args[0], Tensor) else kwargs.get("input")
    if not isinstance(out, Tensor) or not isinstance(source, Tensor) or source.dim() < 2:
        return
    if name in _PER_ELEMENT:
        yield _PER_ELEMENT[name] * out.numel()
    elif name == "clamp":
        bounds = [*args[1:3], kwargs.get("min"), kwargs.get("max")]
        yield sum(bound is not None for bound in bounds) * out.numel()
    elif name == "max_pool2d" and source.dim() == 4:
        # Along rows first, whose maxima neighbouring windows share, then along columns.
        kernel = kwargs.get("kernel_size", args[1] if len(args) > 1 else 1)
        tall, wide = kernel if isinstance(kernel, Sequence) else (kernel, kernel)
        yield (wide - 1) * out.numel() // out.shape[2] * source.shape[2] + (tall - 1) * out.numel()
    elif name.startswith("max_pool"):
        kernel = kwargs.get("kernel_size", args[1] if len(args) > 1 else 1)
        window = math.prod(kernel) if isinstance(kernel, Sequence) else int(kernel) ** (source.dim() - 2)
        yield (window - 1) * out.numel()
    elif name.startswith("adaptive_max_pool"):
        # Along the last dimension first, all windows as long as the longest.
        sizes = list(source.shape)
        for d in range(source.dim() - 1, 1, -1):
            size, sizes[d] = sizes[d], out.shape[d]
            longest = max(-(-(o + 1) * size // sizes[d]) - o * size // sizes[d] for o in range(sizes[d]))
            yield (longest - 1) * math.prod(sizes)
    elif name in _REDUCTIONS:
        # Halved until one entry is left; of an odd number the middle one is in both halves.
        dim, sizes = kwargs.get("dim", args[1] if len(args) > 1 else ()), list(source.shape)
        for d in [dim] if isinstance(dim, int) else dim or range(source.dim()):
            while sizes[d] > 1:
                sizes[d] = (sizes[d] + 1) // 2
                yield math.prod(sizes)
