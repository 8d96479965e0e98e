"""The part of an activation that is the same for both parties."""

import numpy as np
import torch
from torch import Tensor

from deepshare.private.engines.gateshare.crypto.dcf import Bits
from deepshare.private.engines.gateshare.schedule import Gate


def bits_of_gates(step: Gate, bits: Bits) -> Tensor:
    """Bits of a batch in the shape of its gates."""
    return torch.from_numpy(np.ascontiguousarray(bits)).view(-1, *step.gates)


def gated(opened: Tensor, share: Tensor, product: Tensor) -> Tensor:
    """A party's share of x gate.

    The gate is opened xor b for a bit b that nobody knows: x gate = opened x + (1 - 2 opened) x b.

    Args:
        opened: For every neuron the gate, hidden by b.
        share: This party's share of x.
        product: This party's share of x b.
    """
    return torch.where(opened, share - product, product)


def joined(tensors: list[Tensor]) -> Tensor:
    """Rows of several lots as one batch."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
