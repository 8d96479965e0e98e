"""The server: owns the weights; sees masked tensors only."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare import weights
from deepshare.private.engines.gateshare.crypto.prg import fresh_seed, mask
from deepshare.private.engines.gateshare.crypto.ring import truncate_server
from deepshare.private.engines.gateshare.gating import bits_of_gates, gated, joined
from deepshare.private.engines.gateshare.metering import Layers
from deepshare.private.engines.gateshare.preprocessing.lot import (
    Comparison,
    Lot,
    Piece,
    compare,
    pack,
    packed_size,
    unpack,
)
from deepshare.private.engines.gateshare.schedule import (
    Gate,
    Opening,
    Product,
    Schedule,
    Shift,
    Square,
    Step,
    Take,
    alone,
)
from deepshare.private.engines.gateshare.transport.channel import Channel

Rows = Sequence[tuple[Lot, Sequence[int]]]


@dataclass(frozen=True, eq=False)
class Neurons:
    """What the server has for one activation before the images come.

    Attributes:
        mask: What hides its share of the neurons.
        ahead: The client's share of them, hidden.
        bit: Its share of the bits that hide gates, for every neuron.
        masked: Its share of the masks times these bits.
        rest: Its share of alpha times the client's pad less beta times the client's share; where there are any.
        comparisons: Its keys, by lot; none for a follower.
    """

    mask: Tensor
    ahead: Tensor
    bit: Tensor
    masked: Tensor
    rest: Tensor | None
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True, eq=False)
class Opened:
    """What the server has for numbers to be squared before the images come.

    Attributes:
        mask: What hides its share of them.
        ahead: The client's share of them, hidden.
    """

    mask: Tensor
    ahead: Tensor


@dataclass(frozen=True, eq=False)
class Settled:
    """All that the server has for one inference; it is good for one.

    Attributes:
        images: How many images.
        products: By step, what it adds to its own product: bias, and what it owes to the client's share.
        neurons: By step.
        opened: By the step that opens them, numbers to be squared.
        squares: By step, its share of the squares of their masks.
    """

    images: int
    products: dict[int, Tensor]
    neurons: dict[int, Neurons]
    opened: dict[int, Opened]
    squares: dict[int, Tensor]


class Server:
    """A session: one set of weights, hidden by one set of masks.

    Args:
        schedule: Of a program with its hidden numbers.
        seed: Of the masks, from the dealer.
    """

    def __init__(self, schedule: Schedule, seed: bytes) -> None:
        self.schedule, self._seed = schedule, seed
        self._digest = weights.digest(schedule.program)
        self._plain: dict[int, weights.Multiply] = {}
        self._masks: dict[int, weights.Multiply] = {}
        self._affine: dict[int, tuple[Tensor, Tensor]] = {}

    def prepare(self) -> Iterator[tuple[int, list[Tensor]]]:
        """Prepare the weights of all steps, one after the other, and give what the client gets of them."""
        return ((number, self.offsets(number)) for number in weights.session_shapes(self.schedule))

    def offsets(self, number: int) -> list[Tensor]:
        """Prepare the weights of a step, and give what the client gets of them: weights less their masks."""
        step = self.schedule.steps[number]
        if isinstance(step, Product):
            return [self._offset(term) for term in step.terms]
        if not isinstance(step, Gate):
            raise AssertionError(step)
        self._affine[number] = weights.encoded_affine(self.schedule, step)
        masks = weights.affine_masks(self._seed, step)
        return [(value - hidden).flatten() for value, hidden in zip(self._affine[number], masks, strict=True)]

    def _offset(self, term: int) -> Tensor:
        hidden = weights.weight_mask(self._seed, self.schedule, term)
        self._plain[term] = weights.plain(self.schedule, term)
        self._masks[term] = weights.masked(self.schedule, term, hidden)
        return weights.encoded_weight(self.schedule, term) - hidden

    def settle(self, lots: Rows, ahead: Mapping[Piece, Tensor]) -> Settled:
        """Do all that can be done before the images come.

        Args:
            lots: The lots and which of their images are used.
            ahead: What the client sent.

        Raises:
            EngineError: The weights have changed since the session began.
        """
        if weights.digest(self.schedule.program) != self._digest:
            raise EngineError("the weights have changed since their masks were made: start another session")
        products, neurons, opened, squares = {}, {}, {}, {}
        for number, step in enumerate(self.schedule.steps):
            if isinstance(step, Product):
                total = weights.encoded_bias(self.schedule, step) + _sent(lots, "product", number, step.shape)
                for term, source in zip(step.terms, step.inputs, strict=True):
                    total += self._masks[term](ahead[source, "tensor"])
                products[number] = total
            elif isinstance(step, Gate):
                neurons[number] = self._neurons(number, step, lots, ahead[number, "neurons"])
            elif isinstance(step, Opening):
                opened[number] = Opened(_mask(lots, "neurons", number, step.neurons), ahead[number, "neurons"])
            elif isinstance(step, Square):
                squares[number] = _sent(lots, "masked", number, step.opening.neurons)
        return Settled(sum(len(rows) for _, rows in lots), products, neurons, opened, squares)

    def _neurons(self, number: int, step: Gate, lots: Rows, ahead: Tensor) -> Neurons:
        own, masked = _mask(lots, "neurons", number, step.neurons), _sent(lots, "masked", number, step.neurons)
        bit = step.each(_sent(lots, "bit", step.leader, step.gates))
        rest = None
        if step.affine:
            _, beta = weights.affine_masks(self._seed, step)
            rest = _sent(lots, "affine", number, step.neurons) - beta * ahead
        comparisons = tuple(lot.comparison(number, step).only(rows) for lot, rows in lots) if step.leads else ()
        return Neurons(own, ahead, bit, masked, rest, comparisons)

    def answer(self, settled: Settled, client: Channel, layers: Layers) -> Tensor:
        """One inference; gives back the noise that was added to the logits."""
        gates: dict[int, Tensor] = {}
        hidden: dict[int, Tensor] = {}

        def do(number: int, step: Step, inputs: list[Tensor]) -> Tensor:
            match step:
                case Take():
                    result = client.receive_numbers(number, (settled.images, *step.shape))
                case Product():
                    result = self._product(step, inputs, settled.products[number])
                case Shift(by=by):
                    result = truncate_server(inputs[0], by)
                case Opening():
                    opening = step.picked(inputs[0]) - settled.opened[number].mask
                    client.send(number, opening)
                    hidden[number] = opening + settled.opened[number].ahead
                    result = inputs[0]
                case Square(inputs=(source,)):
                    known = hidden.pop(source)
                    mine = known * (known + 2 * settled.opened[source].mask) + settled.squares[number]
                    result = mine + client.receive_numbers(number, tuple(mine.shape))
                case Gate():
                    held = settled.neurons[number]
                    result = step.placed(inputs[0], self._gate(number, step, inputs[0], held, gates, client))
                case _:
                    result = alone(step, inputs)
            layers.end(step, settled.images)
            return result

        output, last = self.schedule.output, self.schedule.steps[self.schedule.output]
        share = self.schedule.run(do)
        noise = mask(fresh_seed(), share.shape) >> (63 - self.schedule.numbers.noise - last.scale)
        client.send(output, share + noise)
        layers.reveal(last)
        return noise

    def _product(self, step: Product, inputs: list[Tensor], settled: Tensor) -> Tensor:
        for term, x in zip(step.terms, inputs, strict=True):
            settled = settled + self._plain[term](x)
        return settled

    def _gate(
        self, number: int, step: Gate, x: Tensor, held: Neurons, gates: dict[int, Tensor], client: Channel
    ) -> Tensor:
        neurons = step.picked(x)
        opening = neurons - held.mask
        client.send(number, opening)
        hidden = opening + held.ahead
        mine = np.empty(0, np.bool_)
        if step.leads:
            mine = compare(held.comparisons, step.compared(hidden), "server")
            client.send(number, pack(mine))
        product = hidden * held.bit + held.masked
        numbers, bits = client.receive_both(number, tuple(neurons.shape), packed_size(len(mine)))
        if step.leads:
            gates[number] = bits_of_gates(step, mine ^ unpack(bits, len(mine)))
        total = gated(step.each(gates[step.leader]), neurons, product) + numbers
        if held.rest is None:
            return total
        alpha, beta = self._affine[number]
        return alpha * total + beta * neurons - held.rest


def _mask(lots: Rows, name: str, number: int, shape: Sequence[int]) -> Tensor:
    return _rows([(lot.mask(name, number, shape), rows) for lot, rows in lots])


def _sent(lots: Rows, name: str, number: int, shape: Sequence[int]) -> Tensor:
    return _rows([(lot.correction(name, number, shape), rows) for lot, rows in lots])


def _rows(parts: Sequence[tuple[Tensor, Sequence[int]]]) -> Tensor:
    return joined([part if len(rows) == len(part) else part[torch.tensor(rows)] for part, rows in parts])
