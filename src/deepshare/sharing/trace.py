"""Replacement of ReLU calls that swapping modules cannot reach: functions, and modules called several times.

The block is traced with its children as leaves, its ReLU nodes become calls of new children, and the generated code
replaces the block's forward. The block keeps its class, its attributes and its state_dict keys.
"""

import random
from collections.abc import Mapping
from importlib import import_module
from inspect import Signature, signature
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import fx, nn

from deepshare.errors import UnsupportedModelError, reason
from deepshare.sharing.observe import RELU_FUNCTIONS, Inputs, is_plain_relu
from deepshare.sharing.tracer import BlockTracer

_METHODS = frozenset({"relu", "relu_"})


class RewrittenForward:
    """The generated forward of a traced block, which copies and pickles with its block."""

    def __init__(self, block: nn.Module, source: str, names: dict[str, Any]) -> None:
        self.block = block
        self.source = source
        self.names = names
        self._compile()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the generated forward on the block."""
        return self.function(self.block, *args, **kwargs)

    # torch.export reads the code and the signature of a forward as if it were a method.
    @property
    def __code__(self) -> CodeType:
        return self.function.__code__

    @property
    def __signature__(self) -> Signature:
        return signature(MethodType(self.function, self.block))

    def __getstate__(self) -> dict[str, Any]:
        # Modules such as torch can be neither copied nor pickled, but their names can.
        modules = {name: value.__name__ for name, value in self.names.items() if isinstance(value, ModuleType)}
        names = {name: value for name, value in self.names.items() if name not in modules}
        return {"block": self.block, "source": self.source, "names": names, "modules": modules}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.block, self.source = state["block"], state["source"]
        self.names = state["names"] | {name: import_module(path) for name, path in state["modules"].items()}
        self._compile()

    def _compile(self) -> None:
        space = dict(self.names)
        exec(compile(self.source, "<traced forward>", "exec"), space)
        self.function: FunctionType = space["forward"]


def rewrite(
    block: nn.Module, path: str, activations: Mapping[int, tuple[str, nn.Module]], calls: int, inputs: Inputs
) -> None:
    """Replace ReLU calls in the forward of a block by calls of new children.

    Args:
        block: The block, modified in place.
        path: Its path in the model, for messages.
        activations: Name and module of the new child, by position among the ReLU calls of the block.
        calls: Number of ReLU calls observed when the block ran.
        inputs: Outline of its arguments.

    Raises:
        UnsupportedModelError: The block's forward cannot be traced, or depends on its training mode.
    """
    tracer = trace_block(block, path, inputs)
    graph = tracer.graph
    given = _given(graph)
    relus = [node for node in graph.nodes if node in given and _is_relu(node, block)]
    if len(relus) != calls:
        raise UnsupportedModelError(
            f"{path}: {calls} ReLU calls ran but its traced forward has {len(relus)}: "
            "give each ReLU call an nn.ReLU module of its own"
        )
    for position, (name, module) in activations.items():
        block.add_module(name, module)
        node = relus[position]
        source = node.args[0] if node.args else node.kwargs["input"]
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.call_module(name, (source,)))
        graph.erase_node(node)
    install(block, path, tracer)


def install(block: nn.Module, path: str, tracer: BlockTracer) -> None:
    """Let a block run the graph that was traced of it."""
    for name, tensor in tracer.constants.items():
        setattr(block, name, tensor)
    code = tracer.graph.python_code("self")
    block.forward = RewrittenForward(block, code.src + tracer.front(path), code.globals | dict(tracer.names()))


def trace_block(block: nn.Module, path: str, inputs: Inputs) -> BlockTracer:
    """Trace in train and eval mode; FX bakes in `self.training`, so the two must agree, but for flags that say it.

    Raises:
        UnsupportedModelError: The block's forward cannot be traced, or depends on its training mode.
    """
    if "forward" in vars(block):
        raise UnsupportedModelError(
            f"{path}: its forward was replaced on the instance, which tracing cannot see: define it in the class"
        )
    training, draws = block.training, (random.getstate(), torch.get_rng_state())
    tracers = [BlockTracer(block, inputs) for _ in range(2)]
    try:
        for tracer, mode in zip(tracers, (True, False), strict=True):
            block.training = mode
            tracer.trace(block)
    except Exception as error:
        raise UnsupportedModelError(
            f"{path}: its forward cannot be traced ({reason(error)}): give each ReLU call an nn.ReLU module of its own"
        ) from error
    finally:
        block.training = training
        drew = random.getstate() != draws[0] or not torch.equal(torch.get_rng_state(), draws[1])
        random.setstate(draws[0])
        torch.set_rng_state(draws[1])
    if drew:
        raise UnsupportedModelError(
            f"{path}: its forward also draws random numbers, which cannot be traced: "
            "give each ReLU call an nn.ReLU module of its own"
        )
    _read_mode(tracers[0].graph, tracers[1].graph)
    sources = [tracer.graph.python_code("self").src + tracer.front(path) for tracer in tracers]
    if sources[0] != sources[1] or not _same_constants(*tracers):
        raise UnsupportedModelError(
            f"{path}: its forward reads self.training, which cannot be traced: "
            "give each ReLU call an nn.ReLU module of its own"
        )
    return tracers[0]


def _given(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that depend on the block's arguments, and so on the images."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder" or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _read_mode(training: fx.Graph, evaluation: fx.Graph) -> None:
    """Let flags that are the training mode, such as that of F.dropout, read it in both graphs of a block."""
    made: list[tuple[fx.Node, fx.Node]] = []

    def read(one: Any, other: Any) -> tuple[Any, Any]:
        if one is not True or other is not False:
            return one, other
        if not made:
            first, second = (_begin(graph, "training") for graph in (training, evaluation))
            made.append((first, second))
        return made[0]

    for node, other in zip(list(training.nodes), list(evaluation.nodes), strict=False):
        if node.op not in ("call_function", "call_method") or node.target != other.target:
            continue
        pairs = [read(*pair) for pair in zip(node.args, other.args, strict=False)]
        named = {key: read(value, other.kwargs.get(key)) for key, value in node.kwargs.items()}
        if len(node.args) == len(other.args) and node.kwargs.keys() == other.kwargs.keys():
            node.args, other.args = (tuple(pair[side] for pair in pairs) for side in (0, 1))
            node.kwargs, other.kwargs = ({key: pair[side] for key, pair in named.items()} for side in (0, 1))


def _begin(graph: fx.Graph, attribute: str) -> fx.Node:
    """Read an attribute of the block before all else."""
    with graph.inserting_before(next(iter(graph.nodes))):
        return graph.create_node("get_attr", attribute)


def _same_constants(one: BlockTracer, other: BlockTracer) -> bool:
    pairs = ((tensor, other.constants.get(name)) for name, tensor in one.constants.items())
    return one.constants.keys() == other.constants.keys() and all(
        b is not None and a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs
    )


def _is_relu(node: fx.Node, block: nn.Module) -> bool:
    if node.op == "call_module":
        return is_plain_relu(block.get_submodule(str(node.target)))
    if node.op == "call_method":
        return node.target in _METHODS
    return node.op == "call_function" and node.target in RELU_FUNCTIONS
