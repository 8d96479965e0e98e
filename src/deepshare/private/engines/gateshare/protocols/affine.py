"""Alpha and beta without a dealer: shares of w = alpha p - beta a_C, by small scalars times random vectors (`vole`).

Letters as in `gate`. alpha and beta are whole numbers of 2 b bits. Less their smallest, -2^(2b-1), they have a high and
a low digit: alpha = 2^b A1 + A0 - 2^(2b-1), beta = 2^b B1 + B0 - 2^(2b-1). For each digit of each channel the client
holds a random vector as long as the channel, P1, P0, Q1 or Q0, and the parties have shares of A1 P1, A0 P0 and so on.

Once per session
    1. both               `vole`, four digits a channel: the server chooses, the client holds

Before the images
    2. client             p = P1: the pad is what comes
       client -> server   p - P0, a_C - Q1, a_C - Q0                                         24 bytes a neuron
       server             adds A0 (p - P0) to its share of A0 P0: shares of A0 p; B1 a_C and B0 a_C likewise
    3. both               w_S and w_C, from shares of all digits ("affine"; the client keeps p, too: "pad")

To the server each of the three is masked by a vector that is random to it, and the client sees nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from deepshare.private.engines.gateshare.crypto.base_ot import KEY_BYTES
from deepshare.private.engines.gateshare.crypto.dcf import Words
from deepshare.private.engines.gateshare.crypto.ot import DONE_BYTES, extension_bytes
from deepshare.private.engines.gateshare.crypto.ring import expand, fresh_seed
from deepshare.private.engines.gateshare.crypto.vole import LEVEL_BYTES, VoleChooser, VoleHolder
from deepshare.private.engines.gateshare.protocols.transfers import Transfers
from deepshare.private.runtime.outcome import Part

DIGITS = 4


class AffineLayer(Protocol):
    """A step with alpha and beta."""

    @property
    def number(self) -> int:
        """Its place in the schedule."""

    @property
    def affine_channels(self) -> int:
        """Number of alphas."""

    @property
    def digit_bits(self) -> int:
        """b."""

    def affine_numbers(self) -> Tensor:
        """Alpha and beta as ring elements, (2, channels); the server's alone."""


def digit_bits(fraction: int, limit: int) -> int:
    """Bits b of a digit, for alpha and beta below a power of two with so many fractional bits."""
    return -(-(fraction + limit.bit_length()) // 2)


def affine_cost(neurons: int) -> Part:
    """Size of step 2."""
    return Part(client_bytes=24 * neurons)


def affine_session(layers: Iterable[AffineLayer]) -> Part:
    """Size of step 1."""
    transfers = sum(DIGITS * layer.affine_channels * layer.digit_bits for layer in layers)
    if not transfers:
        return Part()
    return Part(client_bytes=DONE_BYTES + LEVEL_BYTES * transfers, server_bytes=extension_bytes(transfers))


@dataclass(frozen=True, eq=False)
class AffineScalars:
    """One party's end of step 1.

    Attributes:
        begins: By step number, the first of its scalars.
        vole: The client holds, the server chooses; None where nothing is affine.
        digits: The server's, (scalars,).
    """

    begins: dict[int, int]
    vole: VoleHolder | VoleChooser | None
    digits: Words

    @classmethod
    def begin(cls, transfers: Transfers, layers: Iterable[AffineLayer]) -> Self:
        """Do step 1."""
        begins, total, found = {}, 0, list(layers)
        for layer in found:
            begins[layer.number] = total
            total += DIGITS * layer.affine_channels
        digits = np.zeros(0, np.uint64)
        if not found:
            return cls(begins, None, digits)
        bits, at = found[0].digit_bits, (transfers.wire, transfers.step)
        if transfers.party == "client":
            roots = expand(fresh_seed(), KEY_BYTES * total, "roots").view(np.uint64).reshape(-1, 2)
            return cls(begins, VoleHolder.begin(*at, transfers.sender, roots, bits), digits)
        digits = np.concatenate([_digits(layer.affine_numbers(), bits) for layer in found])
        return cls(begins, VoleChooser.begin(*at, transfers.receiver, digits, bits), digits)


def _digits(numbers: Tensor, bits: int) -> Words:
    """A1, A0, B1, B0 of all channels, one after the other."""
    shifted = (numbers + (1 << (2 * bits - 1))).numpy().astype(np.uint64)
    return np.stack([shifted >> np.uint64(bits), shifted & np.uint64((1 << bits) - 1)], 1).reshape(-1)


def make_affine(
    layer: AffineLayer, scalars: AffineScalars, transfers: Transfers, rows: int, a_C: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Do steps 2 and 3.

    Args:
        layer: The step.
        scalars: Of the session.
        transfers: With the other party.
        rows: Neurons of a channel, of all images.
        a_C: (channels, rows), the client's.

    Returns:
        This party's share of w, and for the client p, each (channels, rows).
    """
    channels, bits = layer.affine_channels, layer.digit_bits
    begin = scalars.begins[layer.number]
    part, wire, step = slice(begin, begin + DIGITS * channels), transfers.wire, transfers.step
    high, middle = np.uint64(1 << bits), np.uint64(1 << (2 * bits - 1))
    shape = (DIGITS, channels, rows)
    if isinstance(scalars.vole, VoleHolder):
        if a_C is None:
            raise AssertionError("the client has its masks")
        vectors, products = (found.reshape(shape) for found in scalars.vole.draw(part, rows))
        p, a = vectors[0], a_C.contiguous().numpy().view(np.uint64)
        wire.send(step, np.stack([p - vectors[1], a - vectors[2], a - vectors[3]]))
        w = high * products[0] + products[1] - middle * p - (high * products[2] + products[3] - middle * a)
        return _tensor(w), _tensor(p)
    if scalars.vole is None:
        raise AssertionError("nothing was begun")
    products = scalars.vole.draw(part, rows).reshape(shape)
    changes = wire.receive(step, 24 * channels * rows).view(np.uint64).reshape(3, channels, rows)
    products[1:] += scalars.digits[part].reshape(DIGITS, channels, 1)[1:] * changes
    return _tensor(high * products[0] + products[1] - (high * products[2] + products[3])), None


def _tensor(words: Words) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(words).view(np.int64))
