"""Translation of a trained network into a program: run it once, record its calls, fold BatchNorm, compare.

The program gives logits; a softmax that follows them is left to the client. `with_answer` makes it give the best
classes alone.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from deepshare.errors import EngineError, PlanMismatchError, UnsupportedModelError, reason
from deepshare.private.ir import arithmetic, pooling, shapes  # noqa: F401
from deepshare.private.ir.calls import CURES, HANDLERS, PASSING, SEVERAL, Chain, TracedCall
from deepshare.private.ir.layers import Leaders, activation, is_leaf
from deepshare.private.ir.program import (
    Input,
    Norm,
    Operation,
    Permute,
    Program,
    Resample,
    Reshape,
    TopClasses,
    Weighted,
)
from deepshare.sharing.observe import BATCH, check_input_size, check_original, copy_of, other_channels

Revealed = Literal["class", "top5", "logits"]
_PLACES = {"class": 1, "top5": 5}

# What folding and another order of additions may change, relative to the largest output.
_TOLERANCE = 1e-8

Scores = Callable[..., Tensor]
_SCORES = frozenset({"softmax", "log_softmax"})
_CASTS = frozenset({"to", "float", "half", "bfloat16", "type", "type_as"})


def translate(model: nn.Module, input_size: Sequence[int], *, compare: bool = True) -> Program:
    """Translate a network into the operations of private inference.

    Args:
        model: A network in its final form: plain, with shared gates, or with masks. It is not touched.
        input_size: Size of one image without the batch.
        compare: Check the program against the network on random images.

    Returns:
        The program, in float64.

    Raises:
        UnsupportedModelError: The network does what no engine knows; names all such layers, and how to fix each.
    """
    size = check_input_size(input_size)
    check_original(model)
    network = _in_double(model)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(BATCH, *size, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        tracer = _Tracer(network, images)
        try:
            with _Double(), tracer:
                result = network(images)
        except (UnsupportedModelError, PlanMismatchError):
            raise
        except Exception as error:
            shape = "x".join(map(str, size))
            raise UnsupportedModelError(
                f"{type(model).__name__} does not run on images of size {shape} ({reason(error)}): "
                f"{other_channels(model, size) or 'give the input size that it was trained for'}"
            ) from error
        output, scores = tracer.output(result)
        if tracer.problems:
            raise UnsupportedModelError(list(dict.fromkeys(tracer.problems)))
        program = fold(tracer.operations, output)
        if compare:
            _check(program, model, torch.randn(BATCH, *size, dtype=torch.float64, generator=generator), scores)
    return program


def with_answer(program: Program, revealed: Revealed) -> Program:
    """Return the program that gives this answer instead of logits.

    Raises:
        EngineError: There is no such answer, or the network has too few classes for it.
    """
    if revealed not in get_args(Revealed):
        raise EngineError(f"no answer is named {revealed}: take one of {', '.join(get_args(Revealed))}")
    if revealed == "logits":
        return program
    places, shape = _PLACES[revealed], program.operations[-1].shape
    if shape[0] <= places:
        raise EngineError(f"the answer {revealed} chooses among more classes than the network's {shape[0]}: use logits")
    last = len(program.operations) - 1
    return Program((*program.operations, TopClasses("answer", (last,), (places, *shape[1:]), shape[0])))


def _check(program: Program, model: nn.Module, images: Tensor, scores: Scores | None) -> None:
    """Compare the program, and what the client does with its logits, with the network on new images."""
    name = type(model).__name__
    with _Double():
        result = _in_double(model)(images.clone())
    expected = result["out"] if isinstance(result, dict) else result
    if not bool(torch.isfinite(expected).all()):
        raise UnsupportedModelError(f"{name} gives numbers that are not finite on random images: look at its weights")
    logits = program.evaluate(images)
    difference = ((scores(logits) if scores else logits) - expected).abs().max()
    if not difference <= _TOLERANCE * expected.abs().max().clamp(min=1):
        raise UnsupportedModelError(
            f"{name} was translated but computes something else ({difference:.1e} apart): it may draw random numbers, "
            "or write into views of its tensors"
        )


def _in_double(model: nn.Module) -> nn.Module:
    """Return a copy for evaluation whose tensors, also those that are neither parameters nor buffers, are float64."""
    network = copy_of(model).double().cpu().eval()
    for module in network.modules():
        loose = {k: v for k, v in vars(module).items() if isinstance(v, Tensor) and v.is_floating_point()}
        vars(module).update({name: tensor.double().cpu() for name, tensor in loose.items()})
    return network


class _Double(TorchFunctionMode):
    """Within it casts to another precision do nothing, and tensors that the forward makes are float64."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, Tensor) or not result.is_floating_point() or result.dtype == torch.float64:
            return result
        first = args[0] if args else None
        cast = getattr(func, "__name__", "") in _CASTS and isinstance(first, Tensor) and first.dtype == torch.float64
        return first if cast else result.double()


class _Tracer(TorchFunctionMode):
    """Records one forward pass. Tensors are identified by `id`, and kept alive so that no id comes twice."""

    def __init__(self, network: nn.Module, images: Tensor) -> None:
        super().__init__()
        self.names = {module: name for name, module in network.named_modules()}
        self.stack: list[str] = []
        self.leaf = 0
        self.operations: list[Operation] = [Input("input", (), tuple(images.shape[1:]))]
        self.numbers = {id(images): 0}
        self.tensors: list[Any] = [images]
        self.leaders: Leaders = {}
        self.problems: list[str] = []
        self.scores: dict[int, tuple[int, Scores, UnsupportedModelError]] = {}
        for module in self.names:
            module.register_forward_pre_hook(self._enter)
            module.register_forward_hook(self._leave)

    def output(self, result: Any) -> tuple[int, Scores | None]:
        """The operation of the logits, and the softmax of theirs that the network returns, if it does."""
        result = result["out"] if isinstance(result, dict) and "out" in result else result
        if isinstance(result, Tensor) and id(result) not in self.numbers:
            raise UnsupportedModelError(
                "the network returns a tensor that does not come from the image by functions of torch: "
                "leave out .numpy(), .tolist() and constants"
            )
        if not isinstance(result, Tensor):
            raise UnsupportedModelError(
                f"the network returns {type(result).__name__}, not one tensor of scores: wrap it so that it does"
            )
        output = self.numbers[id(result)]
        read = {source for operation in self.operations for source in operation.inputs}
        for number, (_, _, error) in self.scores.items():
            self.problems += error.problems if number in read or number != output else []
        logits, scores, _ = self.scores.get(output, (output, None, None))
        return logits, scores

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.stack.append(self.names[module])
        self.leaf += is_leaf(module)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        self.stack.pop()
        if is_leaf(module):
            self.leaf -= 1
            call = self._call(self.names[module], (self.numbers[id(args[0])],), [result])
            try:
                self._add(activation(module, call, self.leaders), result)
            except UnsupportedModelError as error:
                self._refuse(error, [result])

    def _call(self, name: str, sources: tuple[int, ...], results: Sequence[Tensor]) -> TracedCall:
        return TracedCall(
            name=name,
            inputs=sources,
            before=(BATCH, *self.operations[sources[0]].shape),
            shapes=tuple(tuple(result.shape[1:]) for result in results),
            number=len(self.operations),
            depends=lambda value: id(value) in self.numbers,
        )

    def _add(self, operation: Operation, result: Tensor) -> None:
        if isinstance(operation, Resample) and len(operation.shape) == 1:  # a mean that drops its dimensions
            self.operations.append(replace(operation, shape=(*operation.shape, 1, 1)))
            operation = Reshape(operation.name, (len(self.operations) - 1,), operation.shape)
        self.operations.append(operation)
        self._alias(result, len(self.operations) - 1)

    def _alias(self, result: Any, number: int) -> None:
        self.numbers[id(result)] = number
        self.tensors.append(result)

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.leaf or not isinstance(result, Tensor | tuple | list):
            return result
        sources = [self.numbers[id(v)] for v in _tensors((args, kwargs)) if id(v) in self.numbers]
        results = _tensors(result)
        if sources and results:
            try:
                self._record(func, args, kwargs, sources, result)
            except UnsupportedModelError as error:
                self._refuse(error, results)
        return result

    def _refuse(self, error: UnsupportedModelError, results: Sequence[Tensor], *, noted: bool = True) -> None:
        """Note a problem, and go on with results of an unknown operation to find the others."""
        self.problems += error.problems if noted else []
        for result in results:
            self._add(Input("unknown", (), tuple(result.shape[1:])), result)

    def _record(self, func: Any, args: Any, kwargs: dict[str, Any], sources: list[int], result: Any) -> None:
        name = getattr(func, "__name__", str(func))
        if name == "__get__":  # of a property, such as x.mT
            name = func.__self__.__name__
        where = self.stack[-1] if self.stack else ""
        if name in PASSING and isinstance(result, Tensor):
            self._alias(result, sources[0])
            return
        handler = HANDLERS.get(name)
        if len(sources) > 1 and name not in SEVERAL:
            raise UnsupportedModelError(
                f"{where or 'the network'} calls {name.strip('_')} with several tensors that depend on the image: "
                "private inference knows sums, products, maxima and concatenation of such"
            )
        if handler is None:
            error = UnsupportedModelError(
                f"{where or 'the network'} calls {name.strip('_')}, which private inference does not know: "
                f"{CURES.get(name.strip('_'), 'build it from convolutions, ReLUs, pooling, sums and products')}"
            )
            if name not in _SCORES or not _over_classes(func, args[0] if args else kwargs["input"], result):
                raise error
            self._refuse(error, [result], noted=False)
            self.scores[self.numbers[id(result)]] = sources[0], partial(func, dim=1), error
            return
        results = [result] if isinstance(result, Tensor) else [part for part in result if isinstance(part, Tensor)]
        made = handler(self._call(where, tuple(sources), results), *args, **kwargs)
        if isinstance(made, Operation):
            self._add(made, result)
            return
        for chain, part in zip([made] if isinstance(made, Chain) else made, results, strict=True):
            self.operations += chain.operations
            self._alias(part, chain.result)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in _tensors(item)] if isinstance(value, tuple | list) else []


def _over_classes(softmax: Scores, x: Tensor, result: Tensor) -> bool:
    """Return True if a softmax is one over the classes: it is left to the client if nothing follows it."""
    return x.dim() > 1 and torch.equal(partial(softmax, dim=1)(x), result)


def fold(operations: Sequence[Operation], output: int) -> Program:
    """Make a program of recorded operations: only those that lead to the output, every Norm folded away.

    A Norm that reads the only use of a convolution or a linear layer becomes a part of it. Any other one, such as the
    first of a pre-activation block, becomes a layer of its own.
    """
    wanted = _reachable(operations, output)
    _check_means(operations, wanted)
    if places := [operations[number] for number in wanted if number and isinstance(operations[number], Input)]:
        raise UnsupportedModelError(
            [f"{place.name or 'the network'}: the place of a maximum is read: use its value only" for place in places]
        )
    uses = Counter(source for number in wanted for source in operations[number].inputs)
    kept: list[Operation] = []
    numbers: dict[int, int] = {}
    for number in sorted(wanted):
        operation = operations[number]
        if isinstance(operation, Norm):
            (before,) = operation.inputs
            layer = kept[numbers[before]]
            if operation.public and bool((operation.scale == 1).all() and (operation.shift == 0).all()):
                numbers[number] = numbers[before]
                uses[before] += uses[number] - 1
                continue
            if uses[before] == 1 and isinstance(layer, Weighted):
                numbers[number] = numbers[before]
                kept[numbers[number]] = layer.scaled(operation.scale, operation.shift)
                continue
            operation = operation.alone()
        numbers[number] = len(kept)
        kept.append(operation.moved(numbers))
    return Program(tuple(kept))


def _check_means(operations: Sequence[Operation], wanted: set[int]) -> None:
    """Refuse a mean of means: what is truncated twice in a row leaves shares that hardly any lot can truncate."""
    for number in wanted:
        mean = operations[number]
        if not isinstance(mean, Resample) or mean.rows.numel() > 1 or mean.scale == 1:
            continue
        source = operations[mean.inputs[0]]
        while isinstance(source, Reshape | Permute):
            source = operations[source.inputs[0]]
        if isinstance(source, Resample) and source.scale != 1:
            raise UnsupportedModelError(
                f"{mean.name or 'the network'}: a mean of means: take one mean over all their dimensions"
            )


def _reachable(operations: Sequence[Operation], output: int) -> set[int]:
    wanted, open_ends = {0}, [output]
    while open_ends:
        number = open_ends.pop()
        if number not in wanted:
            wanted.add(number)
            open_ends += operations[number].sources
    return wanted
