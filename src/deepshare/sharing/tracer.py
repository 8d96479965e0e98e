"""FX tracing of one block, with its children as leaves and the structure of its arguments kept.

FX treats every argument as a tensor: it bakes in the wrong branch of `shortcut is None`, and a list cannot be written
to. Here arguments keep the structure seen at run time: None stays None, containers stay containers, and only their
elements become inputs of the graph. A few generated lines unpack the arguments in the same way at run time.
"""

from collections.abc import Callable, Iterator
from inspect import BoundArguments, Parameter, Signature, signature
from typing import Any, NoReturn

import torch
from torch import fx, nn

from deepshare.errors import UnsupportedModelError


class BlockTracer(fx.Tracer):
    """Traces one block once.

    Args:
        block: The block.
        inputs: Outline of the arguments it was called with, from `observe`.
    """

    def __init__(self, block: nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        super().__init__()
        self.signature = signature(block.forward)
        self.bound = self.signature.bind(*inputs[0], **inputs[1])
        self.defaults = {p.name: p.default for p in self.signature.parameters.values() if p.default is not p.empty}
        missing = self.defaults.keys() - self.bound.arguments.keys()
        self.bound.arguments |= {name: None if self.defaults[name] is None else ... for name in missing}
        self.members = set(block.modules())
        self.contexts = _contexts()
        self.sources: list[str] = []
        self.conditions: list[str] = []
        self.written: list[str] = []

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
            lines += [f"    if not ({' and '.join(self.conditions)}):", f"        _refuse({path!r})"]
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


class _Name(str):
    """A default value whose repr is its name in the generated code."""

    def __repr__(self) -> str:
        return str(self)


def _contexts() -> tuple[bool, ...]:
    return torch.is_grad_enabled(), *(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))


def _same(items: list[Any], others: list[Any]) -> bool:
    return len(items) == len(others) and all(a is b for a, b in zip(items, others, strict=True))


def refuse_other_arguments(path: str) -> NoReturn:
    """Raise because a traced block got arguments of another structure than during conversion."""
    raise UnsupportedModelError(
        f"{path}: its arguments have None or lists in other places than when its ReLUs were found: "
        "give each ReLU call an nn.ReLU module of its own"
    )
