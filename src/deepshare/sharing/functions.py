"""Replacement of activations and max-pooling that a block calls as functions by modules.

The block is traced with its children as leaves, as for ReLU functions (`trace`). Only blocks whose forward names such a
function are looked at.
"""

import copy
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from inspect import Parameter, signature
from itertools import chain
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from deepshare.errors import UnsupportedModelError
from deepshare.sharing.observe import RELU_FUNCTIONS, is_plain_relu
from deepshare.sharing.trace import RewrittenForward, install, trace_block

Make = Callable[[nn.Module], nn.Module | None]


class Maximum(nn.Module):
    """torch.maximum as a module."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the larger of two tensors."""
        return torch.maximum(a, b)


class Minimum(nn.Module):
    """torch.minimum as a module."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the smaller of two tensors."""
        return torch.minimum(a, b)


class GivenPReLU(nn.Module):
    """F.prelu as a module: the slopes come with the input."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """Apply it to x."""
        return F.prelu(x, weight)


# What a function is as a module; clamp is a Hardtanh, one of whose bounds may be infinite.
_MODULES: dict[str, type[nn.Module]] = {
    "relu6": nn.ReLU6,
    "hardtanh": nn.Hardtanh,
    "clamp": nn.Hardtanh,
    "clip": nn.Hardtanh,
    "clamp_min": nn.Hardtanh,
    "clamp_max": nn.Hardtanh,
    "abs": nn.LeakyReLU,
    "hardsigmoid": nn.Hardsigmoid,
    "hardswish": nn.Hardswish,
    "leaky_relu": nn.LeakyReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "celu": nn.CELU,
    "mish": nn.Mish,
    "softplus": nn.Softplus,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "max_pool2d": nn.MaxPool2d,
    "adaptive_max_pool2d": nn.AdaptiveMaxPool2d,
    "threshold": nn.Threshold,
    "prelu": GivenPReLU,
    "maximum": Maximum,
    "minimum": Minimum,
    "max": Maximum,
    "min": Minimum,
}
# Arguments beside the input, where they matter.
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "hardtanh": ("min_val", "max_val"),
    "clamp": ("min", "max"),
    "clip": ("min", "max"),
    "clamp_min": ("min",),
    "clamp_max": ("max",),
    "leaky_relu": ("negative_slope",),
    "max_pool2d": ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"),
    "adaptive_max_pool2d": ("output_size", "return_indices"),
    "threshold": ("threshold", "value"),
}
# Of two tensors: the name of the second argument.
_SECOND = {"prelu": "weight", "maximum": "other", "minimum": "other", "max": "other", "min": "other"}
# Functions with other uses than as an activation: where they cannot be reached they stay, and `others` counts them.
_ALSO = frozenset({"abs", "clamp_min", "clamp_max", "max", "min"})
_FUNCTIONS = {operator.abs} | {
    getattr(library, name) for name in _MODULES for library in (torch, F, torch.special) if hasattr(library, name)
}


def replace_functions(
    block: nn.Module, path: str, makes: Sequence[Make], kinds: AbstractSet[type[nn.Module]], reach: int
) -> None:
    """Replace functions in the forward of a block by modules, in place, together with its ReLU functions.

    A module that was replaced already and is called several times becomes a module for each call, since each call has
    sites of its own.

    Args:
        block: The block.
        path: Its path in the model, for messages.
        makes: Each returns a module in the place of another one, or None.
        kinds: Types of the modules that were put in the place of others.
        reach: 1 for functions that the forward itself or what it calls names, 2 for all.

    Raises:
        UnsupportedModelError: The block calls such a function and cannot be traced.
    """
    wanted = {name for name in _MODULES if _made(_default(name), makes) is not None}
    names = _named_early(block) if reach == 1 else _named(block)
    named = sorted(names & wanted, key=lambda name: (name in _ALSO, name))
    own = not type(block).__module__.startswith("torch.nn.")
    if not named and not (own and any(type(child) in kinds for child in block.children())):
        return
    where = path or type(block).__name__
    cure = f"use nn.{_MODULES[named[0]].__name__} as a module" if named else "give each call a module of its own"
    if isinstance(block.forward, RewrittenForward):
        if not named:
            return
        raise UnsupportedModelError(
            f"{where}: it calls {named[0]} and was rewritten before: ask for all changes at once"
        )
    try:
        tracer = trace_block(block, where, _outline(block))
    except UnsupportedModelError as error:
        if _ALSO.issuperset(named):
            return
        reason = str(error).removeprefix(f"{where}: ").rpartition(":")[0]
        raise UnsupportedModelError(f"{where}: it calls {named[0]}, but {reason}: {cure}") from error
    graph = tracer.graph
    again = _called_again(graph, block, kinds)
    if not named and not any(type(block.get_submodule(str(node.target))) in kinds for node in again):
        return
    new_modules: list[tuple[fx.Node, nn.Module]] = []
    for node in graph.nodes:
        relu = _is_relu(node)
        found = None if relu else _module(node)
        try:
            new = nn.ReLU() if relu else None if found is None else _made(found, makes)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{where} calls {_name(node)}: {error}") from error
        if new is None:
            continue
        source = _sources(node)[0]
        if _in_place(node) and isinstance(source, fx.Node) and len(source.users) > 1:
            raise UnsupportedModelError(f"{where}: it overwrites a tensor by {_name(node)} that it reads again: {cure}")
        new_modules.append((node, new))
    if all(type(new) is nn.ReLU and _is_relu(node) for node, new in new_modules) and not any(
        type(block.get_submodule(str(node.target))) in kinds for node in again
    ):
        return
    for node in again:
        child = str(node.target)
        name = _free(block, child.replace(".", "_"))
        block.add_module(name, copy.deepcopy(block.get_submodule(child)))
        node.target = name
    for node, new in new_modules:
        name = _free(block, "relu" if _is_relu(node) else _name(node))
        block.add_module(name, new.train(block.training))
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.call_module(name, _sources(node)))
        graph.erase_node(node)
    install(block, where, tracer)


def _called_again(graph: fx.Graph, block: nn.Module, kinds: AbstractSet[type[nn.Module]]) -> list[fx.Node]:
    """All calls but the first of children that were replaced, and of ReLUs, for those without parameters."""
    seen, again = set(), []
    for node in graph.nodes:
        if node.op != "call_module":
            continue
        child = block.get_submodule(str(node.target))
        if child in seen and (type(child) in kinds or is_plain_relu(child)) and is_stateless(child):
            again.append(node)
        seen.add(child)
    return again


def is_stateless(module: nn.Module) -> bool:
    """Return True if a module has neither parameters nor buffers."""
    return not any(True for _ in module.parameters()) and not any(True for _ in module.buffers())


def _named(block: nn.Module) -> set[str]:
    """Functions that the forward of a block names, in its class or as it was rewritten, or has under other names."""
    if type(block).__module__.startswith("torch.nn."):
        return set()
    forward = block.forward
    if isinstance(forward, RewrittenForward):
        names: Iterable[str] = re.findall(r"\.(\w+)\(", forward.source)
    else:
        names = _names_of(getattr(forward, "__func__", forward), block, set())
    return {name.strip("_") for name in names} & _MODULES.keys()


def _named_early(block: nn.Module) -> set[str]:
    """Functions that early versions found: those that the forward names, and the functions that it calls."""
    if isinstance(block.forward, RewrittenForward) or type(block).__module__.startswith("torch.nn."):
        return _named(block)
    function = getattr(block.forward, "__func__", None)
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    reached = [vars(block).get(name, getattr(function, "__globals__", {}).get(name)) for name in names]
    found = chain(names, *map(_names_of_early, reached))
    return {name.rstrip("_") for name in found} & _MODULES.keys()


def _names_of_early(value: Any) -> Iterable[str]:
    if isinstance(value, partial):
        return _names_of_early(value.func)
    if isinstance(value, dict | list | tuple):
        return chain(*map(_names_of_early, value.values() if isinstance(value, dict) else value))
    if any(value is function for function in _FUNCTIONS):
        return (str(getattr(value, "__name__", "")),)
    return value.__code__.co_names if isinstance(value, FunctionType) else ()


def _names_of(value: Any, block: nn.Module, seen: set[FunctionType]) -> Iterable[str]:
    """Names in a function, in the methods of the block and all else of one's own that it calls.

    A function under another name is known, too, and so are those in a container.
    """
    if isinstance(value, partial):
        return _names_of(value.func, block, seen)
    if isinstance(value, dict | list | tuple):
        parts = value.values() if isinstance(value, dict) else value
        return chain(*(_names_of(part, block, seen) for part in parts))
    if any(value is function for function in _FUNCTIONS):
        return (str(getattr(value, "__name__", "")),)
    value = getattr(value, "fget" if isinstance(value, property) else "__func__", value)
    if not isinstance(value, FunctionType) or value in seen:
        return ()
    if (value.__module__ or "").partition(".")[0] == "torch":  # forwards of torch.fx are of no module
        return ()
    seen.add(value)
    names = list(_names_in(value.__code__))
    reached = list(_reached(names, value, block))
    reached += [cell.cell_contents for cell in value.__closure__ or () if _is_set(cell)]
    return chain(names, *(_names_of(found, block, seen) for found in reached))


def _names_in(code: CodeType) -> Iterable[str]:
    """Names in a function's code, with those of its lambdas, generators and comprehensions."""
    inner = (_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return chain(code.co_names, *inner)


def _reached(names: Sequence[str], function: FunctionType, block: nn.Module) -> Iterable[Any]:
    """Values that names may stand for: attributes of the block, methods of its classes, and global names."""
    given = function.__globals__
    modules = [given[name] for name in names if isinstance(given.get(name), ModuleType)]
    classes = [vars(cls) for cls in type(block).__mro__ if not cls.__module__.startswith("torch.")]
    own = [vars(module) for module in modules if module.__name__.partition(".")[0] not in ("torch", "math")]
    return [place[name] for name in names for place in (vars(block), *classes, given, *own) if name in place]


def _is_set(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # the class of a method that calls super(), while it is made
        return False


def _outline(block: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a forward: tensors where it has no default."""
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature(block.forward).parameters.values()
    return tuple(... for one in parameters if one.kind in kinds and one.default is one.empty), {}


def _made(module: nn.Module, makes: Sequence[Make]) -> nn.Module | None:
    return next((new for make in makes if (new := make(module)) is not None), None)


def _default(name: str) -> nn.Module:
    needed = {"max_pool2d": (2,), "adaptive_max_pool2d": (1,), "threshold": (0, 0)}
    return _MODULES[name](*needed.get(name, ()))


def _name(node: fx.Node) -> str:
    return str(node.target if node.op == "call_method" else getattr(node.target, "__name__", "")).strip("_")


def _module(node: fx.Node) -> nn.Module | None:
    """The module that does what a node does; None where it does something else."""
    name = _name(node)
    known = node.op == "call_method" or (node.op == "call_function" and node.target in _FUNCTIONS)
    if not known or name not in _MODULES:
        return None
    wanted = _ARGUMENTS.get(name, ())
    given = dict(zip(wanted, node.args[1:], strict=False)) | {k: v for k, v in node.kwargs.items() if k in wanted}
    if _MODULES[name] is nn.Hardtanh and name != "hardtanh":
        bounds = {"min": -math.inf, "max": math.inf} | {key: value for key, value in given.items() if value is not None}
        low, high = bounds["min"], bounds["max"]
        numbers = isinstance(low, int | float) and isinstance(high, int | float)
        return nn.Hardtanh(float(low), float(high)) if numbers else None  # type: ignore[arg-type]
    if name == "abs":
        return nn.LeakyReLU(-1.0)
    if name in _SECOND:
        both = [value for value in _sources(node) if isinstance(value, fx.Node)]
        return _MODULES[name]() if len(both) == 2 and node.kwargs.keys() <= {"input", _SECOND[name]} else None
    if any(isinstance(value, fx.Node) for value in given.values()):
        return None
    return _MODULES[name](**given)


def _sources(node: fx.Node) -> tuple[Any, ...]:
    """The tensors of a call: its input, and the second one of those that take two."""
    names = ["input", _SECOND[_name(node)]] if _name(node) in _SECOND else ["input"]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    return tuple(given[name] for name in names if name in given)


def _is_relu(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in ("relu", "relu_")
    return node.op == "call_function" and node.target in RELU_FUNCTIONS


def _in_place(node: fx.Node) -> bool:
    overwrites = str(node.target if node.op == "call_method" else getattr(node.target, "__name__", "")).endswith("_")
    said = node.kwargs.get("inplace") is True or any(value is True for value in node.args[1:])
    return overwrites or (said and _name(node) != "max_pool2d")


def _free(block: nn.Module, name: str) -> str:
    """A name that the block has not."""
    number = 1
    while hasattr(block, f"{name}{number}"):
        number += 1
    return f"{name}{number}"
