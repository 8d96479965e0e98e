"""The client: owns the images; knows all of its shares before there are any."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepshare.private.engines.gateshare import weights
from deepshare.private.engines.gateshare.crypto.prg import mask
from deepshare.private.engines.gateshare.crypto.ring import encode, is_safe_to_truncate, truncate_client
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


@dataclass(frozen=True, eq=False)
class Neurons:
    """What the client has for one activation before the images come.

    Attributes:
        share: Its share of the neurons.
        ahead: The same, hidden: the server has it too.
        bit: Its share of the bits that hide gates, for every neuron.
        masked: Its share of the masks times these bits.
        pad: What hides its answer.
        comparisons: Its keys, by lot; none for a follower.
    """

    share: Tensor
    ahead: Tensor
    bit: Tensor
    masked: Tensor
    pad: Tensor
    comparisons: tuple[Comparison, ...]

    def only(self, rows: Sequence[int]) -> "Neurons":
        """The same for some of the images."""
        share, ahead, bit, masked, pad = (
            tensor[torch.tensor(rows)] for tensor in (self.share, self.ahead, self.bit, self.masked, self.pad)
        )
        return Neurons(share, ahead, bit, masked, pad, tuple(one.only(rows) for one in self.comparisons))


@dataclass(frozen=True, eq=False)
class Squares:
    """What the client has for numbers to be squared before the images come.

    Attributes:
        mask: What hides its share of them.
        ahead: That share, hidden: the server has it too.
        masked: Its share of the squares of the masks.
        pad: What hides its answer.
    """

    mask: Tensor
    ahead: Tensor
    masked: Tensor
    pad: Tensor

    def only(self, rows: Sequence[int]) -> "Squares":
        """The same for some of the images."""
        return Squares(*(tensor[torch.tensor(rows)] for tensor in (self.mask, self.ahead, self.masked, self.pad)))


@dataclass(frozen=True, eq=False)
class Prepared:
    """All that the client has for one inference, or makes of a lot; it is good for one inference.

    Attributes:
        first: Its share of the images.
        last: Its share of the logits.
        ahead: What it will send ahead.
        neurons: By step.
        squares: By step.
        bad: Images for which a share cannot be cut back safely.
    """

    first: Tensor
    last: Tensor
    ahead: dict[Piece, Tensor]
    neurons: dict[int, Neurons]
    squares: dict[int, Squares]
    bad: frozenset[int] = frozenset()

    @property
    def good(self) -> list[int]:
        """The images that can be used."""
        return [row for row in range(len(self.first)) if row not in self.bad]

    def only(self, rows: Sequence[int]) -> "Prepared":
        """The same for some of the images."""
        if len(rows) == len(self.first):
            return self
        chosen = torch.tensor(rows)
        ahead = {piece: tensor[chosen] for piece, tensor in self.ahead.items()}
        neurons = {number: held.only(rows) for number, held in self.neurons.items()}
        squares = {number: held.only(rows) for number, held in self.squares.items()}
        return Prepared(self.first[chosen], self.last[chosen], ahead, neurons, squares)


def together(parts: Sequence[Prepared]) -> Prepared:
    """Several lots as one batch."""
    if len(parts) == 1:
        return parts[0]
    ahead = {piece: joined([part.ahead[piece] for part in parts]) for piece in parts[0].ahead}
    neurons = {number: _joined_neurons([part.neurons[number] for part in parts]) for number in parts[0].neurons}
    squares = {number: _joined_squares([part.squares[number] for part in parts]) for number in parts[0].squares}
    first, last = joined([part.first for part in parts]), joined([part.last for part in parts])
    return Prepared(first, last, ahead, neurons, squares)


def _joined_neurons(parts: list[Neurons]) -> Neurons:
    share, ahead, bit, masked, pad = (
        joined([getattr(part, name) for part in parts]) for name in ("share", "ahead", "bit", "masked", "pad")
    )
    return Neurons(share, ahead, bit, masked, pad, tuple(one for part in parts for one in part.comparisons))


def _joined_squares(parts: list[Squares]) -> Squares:
    return Squares(*(joined([getattr(part, name) for part in parts]) for name in ("mask", "ahead", "masked", "pad")))


class Client:
    """A session with one server.

    Args:
        schedule: Of an outline.
        offsets: By step what the server sent once: weights less their masks.
    """

    def __init__(self, schedule: Schedule, offsets: Mapping[int, Sequence[Tensor]]) -> None:
        self.schedule = schedule
        self._weights: dict[int, weights.Multiply] = {}
        self._affine: dict[int, list[Tensor]] = {}
        for number, step in enumerate(schedule.steps):
            if isinstance(step, Product):
                for term, offset in zip(step.terms, offsets[number], strict=True):
                    self._weights[term] = weights.masked(schedule, term, offset)
            elif isinstance(step, Gate) and step.affine:
                self._affine[number] = [step.per_channel(offset) for offset in offsets[number]]

    def prepare(self, lot: Lot, seed: bytes, shares: dict[int, Tensor] | None = None) -> Prepared:
        """Compute all shares of a lot.

        Args:
            lot: This party's half.
            seed: A new one of its own, for its share of the images; not even the dealer knows it.
            shares: Where to put the share that each Shift cuts back, for who wants to check.
        """
        ahead: dict[Piece, Tensor] = {}
        neurons: dict[int, Neurons] = {}
        squares: dict[int, Squares] = {}
        bad: set[int] = set()
        first = mask(seed, (lot.images, *self.schedule.program.input_size))
        opened = set(self.schedule.opened)

        def do(number: int, step: Step, inputs: list[Tensor]) -> Tensor:
            match step:
                case Take():
                    result = first
                case Product():
                    result = self._product(number, step, inputs, lot)
                case Shift(by=by, window=window):
                    if shares is not None:
                        shares[number] = inputs[0]
                    bad.update(_unsafe(inputs[0], window))
                    result = truncate_client(inputs[0], by)
                case Opening():
                    result = inputs[0]
                    ahead[number, "neurons"] = step.picked(result) - lot.mask("neurons", number, step.neurons)
                case Square(inputs=(source,)):
                    squares[number] = _squares(number, step, ahead[source, "neurons"], lot)
                    result = -squares[number].pad
                case Gate():
                    held = neurons[number] = _neurons(number, step, step.picked(inputs[0]), lot)
                    ahead[number, "neurons"] = held.ahead
                    result = step.placed(inputs[0], -self._rest(number, step, held, lot))
                case _:
                    result = alone(step, inputs)
            if number in opened:
                ahead[number, "tensor"] = result - lot.mask("tensor", number, step.shape)
            return result

        return Prepared(first, self.schedule.run(do), ahead, neurons, squares, frozenset(bad))

    def _product(self, number: int, step: Product, inputs: list[Tensor], lot: Lot) -> Tensor:
        total = lot.mask("product", number, step.shape)
        for term, x in zip(step.terms, inputs, strict=True):
            total = total + self._weights[term](x)
        return total

    def _rest(self, number: int, step: Gate, held: Neurons, lot: Lot) -> Tensor:
        """What its share of the result is less than zero: known beforehand, as all that it depends on is random."""
        if not step.affine:
            return held.pad
        alpha, beta = self._affine[number]
        return alpha * held.pad - beta * held.share + lot.mask("affine", number, step.neurons)

    def ask(self, images: Tensor, prepared: Prepared, server: Channel, layers: Layers) -> Tensor:
        """One inference: the logits as ring elements at the scale of the output."""
        gates: dict[int, Tensor] = {}
        opened: dict[int, Tensor] = {}
        for number, step in enumerate(self.schedule.steps):
            if isinstance(step, Take):
                server.send(number, encode(images, step.scale) - prepared.first)
            elif isinstance(step, Opening):
                opened[number] = server.receive_numbers(number, (len(images), *step.neurons))
                layers.begin()
            elif isinstance(step, Square):
                server.send(number, _answer(prepared.squares[number], opened.pop(step.inputs[0])))
            elif isinstance(step, Gate):
                _gate(number, step, prepared.neurons[number], gates, server, layers)
            else:
                continue
            layers.end(step, len(images))
        output = self.schedule.output
        logits = prepared.last + server.receive_numbers(output, tuple(prepared.last.shape))
        layers.begin()
        layers.reveal(self.schedule.steps[output])
        return logits


def _unsafe(share: Tensor, window: int) -> list[int]:
    if is_safe_to_truncate(share, window):
        return []
    return [row for row, one in enumerate(share) if not is_safe_to_truncate(one, window)]


def _neurons(number: int, step: Gate, share: Tensor, lot: Lot) -> Neurons:
    own, pad = (lot.mask(name, number, step.neurons) for name in ("neurons", "pad"))
    bit = step.each(lot.mask("bit", step.leader, step.gates))
    masked = lot.mask("masked", number, step.neurons)
    comparisons = (lot.comparison(number, step),) if step.leads else ()
    return Neurons(share, share - own, bit, masked, pad, comparisons)


def _squares(number: int, step: Square, ahead: Tensor, lot: Lot) -> Squares:
    masked, pad = (lot.mask(name, number, step.opening.neurons) for name in ("masked", "pad"))
    return Squares(lot.mask("neurons", step.inputs[0], step.opening.neurons), ahead, masked, pad)


def _answer(held: Squares, opening: Tensor) -> Tensor:
    """Its share of the squares: x = hidden + masks, and the server has the square of what is hidden."""
    return 2 * (opening + held.ahead) * held.mask + held.masked + held.pad


def _gate(number: int, step: Gate, held: Neurons, gates: dict[int, Tensor], server: Channel, layers: Layers) -> None:
    hidden = server.receive_numbers(number, tuple(held.share.shape)) + held.ahead
    layers.begin()
    mine = np.empty(0, np.bool_)
    if step.leads:
        mine = compare(held.comparisons, step.compared(hidden), "client")
    product = hidden * held.bit + held.masked
    if step.leads:
        theirs = unpack(server.receive(number, packed_size(len(mine))), len(mine))
        gates[number] = bits_of_gates(step, mine ^ theirs)
    answer = gated(step.each(gates[step.leader]), held.share, product) + held.pad
    server.send(number, answer, pack(mine))
