"""FX tracing of one block, with its children as leaves and the structure of its arguments kept.

FX treats every argument as a tensor: it bakes in the wrong branch of `shortcut is None`, and a list cannot be written
to. Here arguments keep the structure seen at run time: None stays None, containers stay containers, and only their
elements become inputs of the graph. Flags, words and whole numbers keep their defaults. A few generated lines unpack
the arguments in the same way at run time.
"""

from collections.abc import Callable, Iterator
from dis import get_instructions
from inspect import BoundArguments, Parameter, Signature, currentframe, signature
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn

from deepshare.errors import UnsupportedModelError


class BlockTracer(fx.Tracer):
    """Traces one block once.

    Args:
        block: The block.
        inputs: Outline of the arguments it was called with, from `observe`.

    Attributes:
        constants: Tensors that the forward makes without its arguments, by the names under which the graph reads them.
    """

    # What a forward computes of buffers alone would else be a constant, which loaded weights do not change.
    proxy_buffer_attributes = True

    def __init__(self, block: nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        super().__init__()
        self.signature = signature(block.forward)
        self.bound = self.signature.bind(*inputs[0], **inputs[1])
        self.defaults = {p.name: p.default for p in self.signature.parameters.values() if p.default is not p.empty}
        missing = self.defaults.keys() - self.bound.arguments.keys()
        self.members = set(block.modules())
        self.contexts = _contexts()
        self.sources: list[str] = []
        self.conditions: list[str] = []
        self.bound.arguments |= {name: self._outline_of(name) for name in missing}
        self.written: list[str] = []
        self.constants: dict[str, Tensor] = {}

    def trace(self, root: Any, concrete_args: Any = None) -> fx.Graph:
        """Trace the block, which is left as it was."""
        before = set(vars(root))
        try:
            return super().trace(root, concrete_args)
        finally:
            made = [name for name in vars(root) if name not in before]
            self.constants = {name: vars(root).pop(name) for name in made}

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Keep an assertion in the graph; refuse any other choice that depends on the arguments."""
        here = currentframe()
        if here is not None and here.f_back is not None and _asserts(here.f_back.f_back):  # between: Proxy.__bool__
            self.create_proxy("call_function", torch._assert, (obj, "an assertion of the forward fails"), {})
            return True
        return super().to_bool(obj)

    def _outline_of(self, name: str) -> Any:
        """The outline of an argument that was not given."""
        default = self.defaults[name]
        if isinstance(default, int | str):
            self.conditions.append(f"{name} == _default_{name}")
            return _Fixed(default)
        return None if default is None else ...

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Create a node; refuse a context manager such as no_grad, which FX would drop."""
        if _contexts() != self.contexts:
            raise UnsupportedModelError("it enters torch.no_grad() or torch.autocast()")
        return super().create_node(*args, **kwargs)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Treat every child as a leaf."""
        return True

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record the call of a child; run a container created on the fly, such as a slice of a Sequential."""
        if isinstance(m, nn.Sequential) and m not in self.members:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Call the forward with proxies in the observed containers, and None where None was observed."""
        given = {name: self._stand_in(name, outline) for name, outline in self.bound.arguments.items()}
        bound = BoundArguments(self.signature, given)
        before = {name: list(value) for name, value in given.items() if isinstance(value, list)}

        def run(root: nn.Module) -> Any:
            result = root_fn(root, *bound.args, **bound.kwargs)
            self.written = [name for name, items in before.items() if not _same(given[name], items)]
            return (result, *(given[name] for name in self.written)) if self.written else result

        return run, [self.root]

    def _stand_in(self, source: str, outline: Any) -> Any:
        if outline is None:
            self.conditions.append(f"{source} is None")
            return None
        if isinstance(outline, _Fixed):
            return outline.value
        if isinstance(outline, dict):
            self.conditions.append(f"{source}.keys() == {set(outline)}" if outline else f"not {source}")
            return {key: self._stand_in(f"{source}[{key!r}]", value) for key, value in outline.items()}
        if isinstance(outline, list | tuple):
            self.conditions.append(f"len({source}) == {len(outline)}")
            return type(outline)(self._stand_in(f"{source}[{i}]", value) for i, value in enumerate(outline))
        self.sources.append(source)
        return self.create_proxy("placeholder", f"input_{len(self.sources)}", (), {})

    def front(self, path: str) -> str:
        """Source of a `forward` that unpacks its arguments and calls the graph's own one."""
        parameters = [self._own(parameter) for parameter in self.signature.parameters.values()]
        head = str(Signature([Parameter("self", Parameter.POSITIONAL_ONLY), *parameters]))
        lines = ["", "_traced = forward", f"def forward{head}:"]
        if self.conditions:
            lines.append(f"    if not ({' and '.join(self.conditions)}):")
            lines.append(f"        _refuse({path!r}, {self.conditions!r})")
        call = f"_traced({', '.join(['self', *self.sources])})"
        targets = "".join(f", {name}[:]" for name in self.written)
        lines += [f"    _result{targets} = {call}", "    return _result", ""]
        return "\n".join(lines)

    def names(self) -> Iterator[tuple[str, Any]]:
        """Global names that the source of `front` refers to."""
        yield "_refuse", refuse_other_arguments
        for name, value in self.defaults.items():
            yield f"_default_{name}", value

    def _own(self, parameter: Parameter) -> Parameter:
        default = _Name(f"_default_{parameter.name}") if parameter.name in self.defaults else Parameter.empty
        return parameter.replace(annotation=Parameter.empty, default=default)


class _Fixed:
    """The value of an argument that the graph takes for granted."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Name(str):
    """A default value whose repr is its name in the generated code."""

    def __repr__(self) -> str:
        return str(self)


_BETWEEN = frozenset({"TO_BOOL", "CACHE", "NOT_TAKEN", "POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE"})


def _asserts(frame: FrameType | None) -> bool:
    """Return True if a frame, which wants to know the truth of a proxy, decides on an assertion alone."""
    if frame is None:
        return False
    rest = (one for one in get_instructions(frame.f_code) if one.offset >= frame.f_lasti)
    after = next((one for one in rest if one.opname not in _BETWEEN), None)
    return after is not None and "AssertionError" in (after.argval, after.opname.title().replace("_", "")[4:])


def _contexts() -> tuple[bool, ...]:
    return torch.is_grad_enabled(), *(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))


def _same(items: list[Any], others: list[Any]) -> bool:
    return len(items) == len(others) and all(a is b for a, b in zip(items, others, strict=True))


def refuse_other_arguments(path: str, conditions: list[str]) -> NoReturn:
    """Raise because a traced block got arguments of another structure than during conversion."""
    raise UnsupportedModelError(
        f"{path}: its arguments have None, lists or flags in other places than when its activations were replaced, "
        f"which took for granted that {', '.join(conditions)}: give each ReLU, sigmoid or "
        "other activation a module of its own"
    )
