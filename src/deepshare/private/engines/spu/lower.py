"""Turn a program into the steps of the engine."""

from collections import Counter
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from deepshare.private.engines.spu.absorb import pays
from deepshare.private.engines.spu.steps import (
    Gated,
    Gates,
    Join,
    Largest,
    Parts,
    Product,
    Resampled,
    Reshaped,
    Scale,
    Select,
    Share,
    Step,
    Sum,
    Window,
)
from deepshare.private.engines.spu.values import Held, Pending, Value, pending, product, total
from deepshare.private.ir.program import (
    Add,
    Concatenate,
    Convolution,
    GatedActivation,
    Input,
    Linear,
    MaxPool,
    Operation,
    Program,
    Resample,
    Reshape,
    SharedActivation,
    hidden_tensors,
)


def lower(program: Program, absorbs: bool, count: int) -> tuple[Step, ...]:
    """The steps of a program, in order; the last one's output is the result.

    Args:
        program: Whole or an outline: hidden tensors of an outline stay without numbers.
        absorbs: Whether scales go into the products after them where that pays, and sums of products become one, as
            is cheapest on CHEETAH; otherwise each operation is computed where it stands.
        count: Images at once.
    """
    return tuple(_Lowering(program, absorbs, count).steps)


class _Lowering:
    def __init__(self, program: Program, absorbs: bool, count: int) -> None:
        self.program = program
        self.absorbs = absorbs
        self.count = count
        self.steps: list[Step] = []
        self.values: dict[int, Value] = {}
        self.uses = Counter(source for op in program.operations for source in op.inputs)
        self.readers = {source: op for op in program.operations for source in op.inputs}
        for number, operation in enumerate(program.operations):
            self.values[number] = self._lower(number, operation)
        self._plain(len(program.operations) - 1)

    def _lower(self, number: int, operation: Operation) -> Value:
        match operation:
            case Input():
                return self._emit(Share(number=number, inputs=("images",), output=f"v{number}", shape=operation.shape))
            case Convolution() | Linear():
                return self._settled(number, product(operation, number, self._held(operation.inputs[0])))
            case Add():
                return self._add(number, operation)
            case SharedActivation():
                return self._shared(number, operation)
            case GatedActivation():
                return self._gated(number, operation)
            case Concatenate():
                return self._concatenate(number, operation)
            case MaxPool(kernel=kernel, stride=stride, padding=padding):
                window = Window(kernel, stride, padding)
                names = self._names(operation)
                largest = Largest(
                    number=number, inputs=names, output=f"v{number}", shape=operation.shape, window=window
                )
                return self._emit(largest)
            case Resample() | Reshape():
                return self._each_channel(number, operation)
        raise AssertionError(operation)

    def _emit(self, step: Step) -> Held:
        self.steps.append(step)
        return Held(step.output, step.shape)

    def _names(self, operation: Operation) -> tuple[str, ...]:
        return tuple(self._plain(source).name for source in operation.inputs)

    def _settled(self, number: int, value: Pending) -> Value:
        """Leave a product pending only where nothing but a sum reads it."""
        waits = self.absorbs and self.uses[number] == 1 and isinstance(self.readers[number], Add)
        return value if waits else self._compute(number, value)

    def _compute(self, number: int, value: Pending) -> Held:
        numbers = [term.number for term in value.terms if term.number is not None]
        hidden = {"weight": torch.cat([term.weight for term in value.terms])}
        if value.bias is not None:
            hidden["bias"] = value.bias
        step = Product(
            number=max(numbers, default=number),
            inputs=(*(term.source for term in value.terms), *value.addends),
            output=f"v{number}",
            shape=value.shape,
            hidden=hidden,
            windows=tuple(term.window for term in value.terms),
        )
        return self._emit(step)

    def _held(self, number: int) -> Held:
        value = self.values[number]
        if isinstance(value, Pending):
            value = self.values[number] = self._compute(number, value)
        return value

    def _plain(self, number: int) -> Held:
        value = self._held(number)
        if not value.plain:
            value = self.values[number] = self._compute(number, pending(value))
        return value

    def _add(self, number: int, operation: Add) -> Value:
        first, second = (self.values[source] for source in operation.inputs)
        if isinstance(first, Held) and isinstance(second, Held) and first.plain and second.plain:
            return self._emit(
                Sum(number=number, inputs=(first.name, second.name), output=f"v{number}", shape=first.shape)
            )
        return self._settled(number, total(pending(first), pending(second)))

    def _shared(self, number: int, operation: SharedActivation) -> Held:
        x = self._plain(operation.inputs[0])
        # The compiler makes a product of vectors something dearer than one of matrices.
        rows = 0 if self.absorbs else max(operation.prototypes, 2)
        if operation.leads:
            shape = (operation.prototypes, *operation.shape[1:])
            self._emit(Gates(number=number, inputs=(x.name,), output=f"g{number}", shape=shape, columns=rows))
        inputs = (x.name, f"g{operation.leader}")
        if self.absorbs:
            shape = (2 * operation.shape[0], *operation.shape[1:])
            pi = tuple(operation.pi.tolist())
            self._emit(Select(number=number, inputs=inputs, output=f"s{number}", shape=shape, pi=pi))
            scale = torch.cat([operation.alpha, operation.beta])
            return self._apart(number, f"s{number}", scale)
        chosen = torch.nn.functional.one_hot(operation.pi, rows).to(operation.alpha)
        spread = (chosen * operation.alpha[:, None]).T
        hidden = {"spread": spread, "beta": operation.beta}
        step = Scale(
            number=number,
            inputs=inputs,
            output=f"v{number}",
            shape=operation.shape,
            hidden=hidden,
            rows=rows,
        )
        return self._emit(step)

    def _gated(self, number: int, operation: GatedActivation) -> Held:
        mask = operation.mask.reshape(-1)
        gates, others = mask.nonzero()[:, 0], (~mask).nonzero()[:, 0]
        names, output, shape = self._names(operation), f"v{number}", operation.shape
        hidden: dict[str, Tensor] = {}
        if len(others) and operation.square is not None and operation.linear is not None:
            scales = [_per_channel(c, shape) for c in (operation.square, operation.linear)]
            if self.absorbs and scales[0] is not None and scales[1] is not None:
                return self._parts(number, operation, [torch.ones_like(scales[0]), scales[0], scales[1]])
            full = {name: value.expand(shape).reshape(-1) for name, value in hidden_tensors(operation).items()}
            hidden = {name: value[others] for name, value in full.items()}
        step = Gated(number=number, inputs=names, output=output, shape=shape, hidden=hidden, gates=gates, others=others)
        return self._emit(step)

    def _parts(self, number: int, operation: GatedActivation, scales: list[Tensor]) -> Held:
        mask, (channels, *area) = operation.mask, operation.shape
        constant = hidden_tensors(operation)["constant"].expand(operation.shape)
        step = Parts(
            number=number,
            inputs=self._names(operation),
            output=f"s{number}",
            shape=(3 * channels, *area),
            hidden={"constant": constant * (~mask).to(constant)},
            gates=mask.reshape(-1).nonzero()[:, 0],
            others=(~mask).reshape(-1).nonzero()[:, 0],
        )
        self._emit(step)
        return self._apart(number, step.output, torch.cat(scales))

    def _apart(self, number: int, name: str, scale: Tensor) -> Held:
        """A value whose channels are parts one after the other, left so or put together."""
        shape = self.program.operations[number].shape
        held = Held(name, shape, torch.arange(len(scale)) % shape[0], scale)
        if pays(self.program, number, len(scale) // shape[0], self.count):
            return held
        return self._compute(number, pending(held))

    def _concatenate(self, number: int, operation: Concatenate) -> Held:
        parts = [self._held(source) for source in operation.inputs]
        if all(part.plain for part in parts):
            names = tuple(part.name for part in parts)
            return self._emit(Join(number=number, inputs=names, output=f"v{number}", shape=operation.shape))
        owners, scales, first = [], [], 0
        device = next(part.scale.device for part in parts if part.scale is not None)
        for part in parts:
            ones = torch.ones(part.shape[0], dtype=torch.float64, device=device)
            owners.append(first + (torch.arange(part.shape[0]) if part.owner is None else part.owner))
            scales.append(ones if part.scale is None else part.scale)
            first += part.shape[0]
        owner, names = torch.cat(owners), tuple(part.name for part in parts)
        self._emit(Join(number=number, inputs=names, output=f"s{number}", shape=(len(owner), *operation.shape[1:])))
        return Held(f"s{number}", operation.shape, owner, torch.cat(scales))

    def _each_channel(self, number: int, operation: Resample | Reshape) -> Held:
        """Operations that treat all channels alike, and so those of a scaled variable."""
        x = self._held(operation.inputs[0])
        if isinstance(operation, Reshape) and not x.plain and len(operation.shape) != 1:
            x = self._plain(operation.inputs[0])
        channels = operation.shape[0] if x.owner is None else len(x.owner) * operation.shape[0] // x.shape[0]
        shape = (channels, *operation.shape[1:])
        if isinstance(operation, Resample):
            step = Resampled(
                number=number,
                inputs=(x.name,),
                output=f"v{number}",
                shape=shape,
                rows=operation.rows,
                columns=operation.columns,
                scale=operation.scale,
            )
            return replace(x, name=self._emit(step).name, shape=operation.shape)
        held = self._emit(Reshaped(number=number, inputs=(x.name,), output=f"v{number}", shape=shape))
        if x.owner is None or x.scale is None:
            return held
        area = prod(x.shape[1:])
        owner = (x.owner[:, None] * area + torch.arange(area)).flatten()
        return Held(held.name, operation.shape, owner, x.scale.repeat_interleave(area))


def _per_channel(coefficient: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """One number for each channel, where there are no more."""
    if coefficient.dim() == len(shape) and all(size == 1 for size in coefficient.shape[1:]):
        return coefficient.reshape(-1).expand(shape[0])
    return None
