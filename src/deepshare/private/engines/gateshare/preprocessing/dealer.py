"""The dealer: correlated randomness for a network of which it knows the outline alone."""

import os

import numpy as np
import torch
from torch import Tensor

from deepshare.private.engines.gateshare import weights
from deepshare.private.engines.gateshare.crypto import dcf
from deepshare.private.engines.gateshare.crypto.prg import coins, fresh_seed
from deepshare.private.engines.gateshare.preprocessing.lot import ID_BYTES, Lot, pack
from deepshare.private.engines.gateshare.schedule import Gate, Product, Schedule, Square


class Dealer:
    """Deals for one session, that is for one set of weights, which it never sees.

    Args:
        schedule: Of an outline.

    Attributes:
        id: Of the session.
        seed: Of the masks that hide the weights; for the server.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.id, self.seed = os.urandom(ID_BYTES), fresh_seed()
        self._schedule = schedule
        self._weights = {
            term: weights.masked(schedule, term, weights.weight_mask(self.seed, schedule, term))
            for step in schedule.steps
            if isinstance(step, Product)
            for term in step.terms
        }

    def deal(self, images: int) -> tuple[Lot, Lot]:
        """A lot for some images: the server's half and the client's."""
        name = os.urandom(ID_BYTES)
        server, client = (Lot(name, fresh_seed(), images) for _ in range(2))
        own = Lot(name, fresh_seed(), images)
        bits: dict[int, Tensor] = {}
        for number, step in enumerate(self._schedule.steps):
            if isinstance(step, Product):
                self._product(number, step, server, client)
            elif isinstance(step, Gate):
                if step.leads:
                    bits[number] = _comparison(number, step, own, server, client)
                self._gate(number, step, bits[step.leader], server, client)
            elif isinstance(step, Square):
                _square(number, step, server, client)
        return server, client

    def _product(self, number: int, step: Product, server: Lot, client: Lot) -> None:
        total = -client.mask("product", number, step.shape)
        for term, source in zip(step.terms, step.inputs, strict=True):
            total += self._weights[term](client.mask("tensor", source, self._schedule.steps[source].shape))
        server.pieces[number, "product"] = _bytes(total)

    def _gate(self, number: int, step: Gate, bits: Tensor, server: Lot, client: Lot) -> None:
        mine = client.mask("neurons", number, step.neurons)
        both = mine + server.mask("neurons", number, step.neurons)
        masked = both * step.each(bits) - client.mask("masked", number, step.neurons)
        server.pieces[number, "masked"] = _bytes(masked)
        if step.affine:
            alpha, beta = weights.affine_masks(self.seed, step)
            pad = client.mask("pad", number, step.neurons)
            hidden = alpha * pad - beta * mine - client.mask("affine", number, step.neurons)
            server.pieces[number, "affine"] = _bytes(hidden)


def _square(number: int, step: Square, server: Lot, client: Lot) -> None:
    (opening,), shape = step.inputs, step.opening.neurons
    both = client.mask("neurons", opening, shape) + server.mask("neurons", opening, shape)
    server.pieces[number, "masked"] = _bytes(both * both - client.mask("masked", number, shape))


def _comparison(number: int, step: Gate, own: Lot, server: Lot, client: Lot) -> Tensor:
    """Deal the comparisons of a leader; gives the bits that hide its gates, which nobody else knows."""
    count, low = server.images * step.comparisons, np.uint64((1 << (step.bits - 1)) - 1)
    bits = coins(own.seed, count, "bit", number)
    masks = server.mask("neurons", number, step.neurons) + client.mask("neurons", number, step.neurons)
    thresholds = (-step.compared(masks)).numpy().view(np.uint64)
    roots = server.roots(number, step.comparisons), client.roots(number, step.comparisons)
    keys = dcf.deal(thresholds & low, step.bits - 1, roots, server.aes_key(number))
    server.pieces[number, "keys"] = client.pieces[number, "keys"] = np.frombuffer(keys.to_bytes(), np.uint8)
    top = (thresholds >> np.uint64(step.bits - 1)) & np.uint64(1) == 1
    server.pieces[number, "flip"] = pack(top ^ bits ^ client.flips(number, step.comparisons))
    whole = torch.from_numpy(bits.astype(np.int64)).view(server.images, *step.gates)
    server.pieces[number, "bit"] = _bytes(whole - client.mask("bit", number, step.gates))
    return whole


def _bytes(tensor: Tensor) -> dcf.Bytes:
    return tensor.contiguous().numpy().reshape(-1).view(np.uint8)
