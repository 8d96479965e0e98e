"""Activations and max-pooling that a block calls as functions, replaced by modules as if they had been such.

The block is traced with its children as leaves, as for ReLU functions (`trace`). Only blocks whose forward names such a
function are looked at.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from deepshare.errors import UnsupportedModelError
from deepshare.sharing.observe import RELU_FUNCTIONS
from deepshare.sharing.trace import RewrittenForward, trace_block

Make = Callable[[nn.Module], nn.Module | None]

# What a function is as a module; clamp is a Hardtanh if it has both bounds.
_MODULES: dict[str, type[nn.Module]] = {
    "relu6": nn.ReLU6,
    "hardtanh": nn.Hardtanh,
    "clamp": nn.Hardtanh,
    "clip": nn.Hardtanh,
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
}
# Arguments beside the input, where they matter.
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "hardtanh": ("min_val", "max_val"),
    "clamp": ("min", "max"),
    "clip": ("min", "max"),
    "leaky_relu": ("negative_slope",),
    "max_pool2d": ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"),
}
_FUNCTIONS = {
    getattr(library, name) for name in _MODULES for library in (torch, F, torch.special) if hasattr(library, name)
}


def replace_functions(block: nn.Module, path: str, makes: Sequence[Make]) -> None:
    """Replace functions in the forward of a block by modules, in place, together with its ReLU functions.

    Args:
        block: The block.
        path: Its path in the model, for messages.
        makes: Each returns a module in the place of another one, or None.

    Raises:
        UnsupportedModelError: The block calls such a function and cannot be traced.
    """
    named = sorted(_named(block) & {name for name in _MODULES if _made(_default(name), makes) is not None})
    if not named:
        return
    where = path or type(block).__name__
    cure = f"use nn.{_MODULES[named[0]].__name__} as a module"
    if isinstance(block.forward, RewrittenForward):
        raise UnsupportedModelError(
            f"{where}: it calls {named[0]} and was rewritten before: ask for all changes at once"
        )
    try:
        tracer = trace_block(block, where, _outline(block))
    except UnsupportedModelError as error:
        reason = str(error).removeprefix(f"{where}: ").rpartition(":")[0]
        raise UnsupportedModelError(f"{where}: it calls {named[0]}, but {reason}: {cure}") from error
    graph, changed = tracer.graph, False
    for node in list(graph.nodes):
        relu = _is_relu(node)
        found = None if relu else _module(node)
        new = nn.ReLU() if relu else None if found is None else _made(found, makes)
        if new is None:
            continue
        source = node.args[0] if node.args else node.kwargs["input"]
        if _in_place(node) and isinstance(source, fx.Node) and len(source.users) > 1:
            raise UnsupportedModelError(f"{where}: it overwrites a tensor by {named[0]} that it reads again: {cure}")
        changed = changed or not relu
        name = _free(block, "relu" if relu else _name(node))
        block.add_module(name, new.train(block.training))
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.call_module(name, (source,)))
        graph.erase_node(node)
    if changed:
        code = graph.python_code("self")
        block.forward = RewrittenForward(block, code.src + tracer.front(where), code.globals | dict(tracer.names()))


def _named(block: nn.Module) -> set[str]:
    """Functions that the forward of a block names, in its class or as it was rewritten."""
    if type(block).__module__.startswith("torch.nn."):
        return set()
    forward = block.forward
    if isinstance(forward, RewrittenForward):
        names: Iterable[str] = re.findall(r"\.(\w+)\(", forward.source)
    else:
        names = getattr(getattr(getattr(forward, "__func__", None), "__code__", None), "co_names", ())
    return {name.rstrip("_") for name in names} & _MODULES.keys()


def _outline(block: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a forward: tensors where it has no default."""
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature(block.forward).parameters.values()
    return tuple(... for one in parameters if one.kind in kinds and one.default is one.empty), {}


def _made(module: nn.Module, makes: Sequence[Make]) -> nn.Module | None:
    return next((new for make in makes if (new := make(module)) is not None), None)


def _default(name: str) -> nn.Module:
    return nn.MaxPool2d(2) if name == "max_pool2d" else _MODULES[name]()


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
    if name in ("clamp", "clip"):
        low, high = given.get("min"), given.get("max")
        both = isinstance(low, int | float) and isinstance(high, int | float)
        return nn.Hardtanh(float(low), float(high)) if both else None  # type: ignore[arg-type]
    if any(isinstance(value, fx.Node) for value in given.values()):
        return None
    return _MODULES[name](**given)


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
