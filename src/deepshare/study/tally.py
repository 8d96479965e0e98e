"""Count how often the gates of a site are open, and open together, over any number of images.

Counts are whole numbers and stay exact, whatever the batches: float32 holds them up to 2^24 images, and covariances are
made of them in float64. A site keeps C x C matrices at chosen positions and two maps; no gate is kept.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepshare.sharing.sites import Site

# Elements of the matrices that are turned into float64 at a time.
BLOCK = 2**22


class Tally:
    """The counts of one site.

    Args:
        site: The site.
        places: At which positions of its map, counted row by row, channels are compared.
        led: Whether it follows a leader, with whose gates its own are compared.
        seed: Of the shuffle.
        device: Where its gates are.

    Attributes:
        images: How many were seen.
        open: Images in which each gate is open, (C, H, W).
        right: Images in which a gate and its neighbour on the right are open, (C, H, W - 1).
        below: The same with the neighbour below, (C, H - 1, W).
        pairs: Images in which two channels are open at the same position, (places, C, C).
        shuffled: The same after the positions of each channel of each image were shuffled.
        leads: Images in which a channel of the leader (rows) and one of this site (columns) are open, or None.
    """

    def __init__(self, site: Site, places: Tensor, *, led: bool, seed: int, device: torch.device) -> None:
        c, h, w = site.shape
        self.places = places.to(device)
        self.images = 0
        self.open = torch.zeros(c, h, w, dtype=torch.long, device=device)
        self.right, self.below = torch.zeros_like(self.open[..., 1:]), torch.zeros_like(self.open[:, 1:])
        self.pairs, self.shuffled = (torch.zeros(len(places), c, c, device=device) for _ in range(2))
        self.leads = torch.zeros_like(self.pairs) if led else None
        self._random = np.random.default_rng(seed)

    def add(self, gates: Tensor, leader: Tensor | None = None) -> Tensor:
        """Count the gates of some images, (N, C, H, W).

        Args:
            gates: Whether they are open.
            leader: What the leader's tally gave back for the same images.

        Returns:
            The gates at the chosen positions, (places, N, C).
        """
        self.images += len(gates)
        self.open += gates.sum(0)
        self.right += (gates[..., 1:] & gates[..., :-1]).sum(0)
        self.below += (gates[:, :, 1:] & gates[:, :, :-1]).sum(0)
        chosen = self._choose(gates.flatten(2))
        _count(self.pairs, chosen, chosen)
        mixed = self._choose(self._shuffle(gates.flatten(2)))
        _count(self.shuffled, mixed, mixed)
        if self.leads is not None and leader is not None:
            _count(self.leads, leader, chosen)
        return chosen

    def _choose(self, gates: Tensor) -> Tensor:
        """(N, C, positions) as numbers, position by position; bytes are turned round before they become floats."""
        if len(self.places) < gates.shape[2]:
            gates = gates[..., self.places]
        return gates.transpose(1, 2).contiguous().float().transpose(0, 1)

    def _shuffle(self, gates: Tensor) -> Tensor:
        """Permute the positions of every channel of every image, each on its own."""
        return torch.from_numpy(self._random.permuted(gates.cpu().numpy(), axis=-1)).to(gates.device)


def _count(total: Tensor, rows: Tensor, columns: Tensor) -> None:
    total.baddbmm_(rows.mT, columns)


class Covariance(NamedTuple):
    """Covariances and variances at some positions, times images squared: whole numbers, exact in float64."""

    matrix: Tensor
    rows: Tensor
    columns: Tensor


def covariances(pairs: Tensor, images: int, rows: Tensor, columns: Tensor) -> Iterator[Covariance]:
    """Turn counts into covariances, some positions at a time.

    Args:
        pairs: Images in which both gates are open, (places, rows, columns).
        images: How many there are.
        rows: Images in which each gate of the rows is open, (places, rows).
        columns: The same for the columns.
    """
    size = max(1, BLOCK // pairs[0].numel())
    for both, row, column in zip(*(counts.split(size) for counts in (pairs, rows, columns)), strict=True):
        both, row, column = both.double(), row.double(), column.double()
        matrix = images * both - row[:, :, None] * column[:, None, :]
        yield Covariance(matrix, row * (images - row), column * (images - column))


def effective_dimension(covariance: Tensor) -> Tensor:
    """Of each of some covariance matrices (..., C, C): between 1 and C, or nan where nothing varies.

    It is the square of the sum of the eigenvalues over the sum of their squares. The first sum is the trace and the
    second the sum of all squared entries, so no matrix has to be decomposed.

    >>> effective_dimension(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))
    tensor(2.)
    """
    trace = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
    return trace.square() / covariance.square().sum((-2, -1))


def strongest(covariance: Covariance) -> Tensor:
    """The largest absolute correlation of each column with any row, (places, columns); nan for a constant column."""
    scale = (covariance.rows[:, :, None] * covariance.columns[:, None, :]).sqrt()
    correlation = torch.where(scale > 0, covariance.matrix.abs() / scale, 0.0)
    return torch.where(covariance.columns > 0, correlation.amax(1), torch.nan)
