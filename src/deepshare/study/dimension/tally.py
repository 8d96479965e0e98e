"""Counts of open gates and of pairs of open gates at one site, over any number of images.

Counts are integers and exact for any batch size: float32 holds them up to 2^24 images, and covariances are computed
from them in float64. A tally stores C x C matrices at chosen positions and three maps, but no gates.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepshare.sharing.sites import Site

# Matrix elements converted to float64 at a time.
BLOCK = 2**22


class Tally:
    """Counts of one site.

    Args:
        site: The site.
        places: Positions of the map, counted row by row, at which channels are compared.
        led: Whether the site follows a leader, whose gates its own are compared with.
        seed: Seed of the shuffle.
        device: Device of the gates.

    Attributes:
        images: Number of images seen.
        open: Images in which each gate is open, (C, H, W).
        right: Images in which a gate and its right neighbour are both open, (C, H, W - 1).
        below: The same with the neighbour below, (C, H - 1, W).
        pairs: Images in which two channels are both open at a position, (places, C, C).
        shuffled: The same after shuffling the positions of each channel of each image.
        leads: Images in which a channel of the leader (rows) and one of this site (columns) are both open, or None.
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
        """Count the gates of a batch of images.

        Args:
            gates: Boolean mask of the open gates, (N, C, H, W).
            leader: Return value of the leader's tally for the same images.

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
        """Convert (N, C, positions) to floats (places, N, C); transposing the bytes first is faster."""
        if len(self.places) < gates.shape[2]:
            gates = gates[..., self.places]
        return gates.transpose(1, 2).contiguous().float().transpose(0, 1)

    def _shuffle(self, gates: Tensor) -> Tensor:
        """Permute the positions of every channel of every image independently."""
        return torch.from_numpy(self._random.permuted(gates.cpu().numpy(), axis=-1)).to(gates.device)


def _count(total: Tensor, rows: Tensor, columns: Tensor) -> None:
    total.baddbmm_(rows.mT, columns)


class Covariance(NamedTuple):
    """Covariances and variances at some positions, times the squared number of images: integers, exact in float64."""

    matrix: Tensor
    rows: Tensor
    columns: Tensor


def covariances(pairs: Tensor, images: int, rows: Tensor, columns: Tensor) -> Iterator[Covariance]:
    """Turn counts into covariances, a block of positions at a time.

    Args:
        pairs: Images in which both gates are open, (places, rows, columns).
        images: Number of images.
        rows: Images in which each gate of the rows is open, (places, rows).
        columns: The same for the columns.
    """
    size = max(1, BLOCK // pairs[0].numel())
    for both, row, column in zip(*(counts.split(size) for counts in (pairs, rows, columns)), strict=True):
        both, row, column = both.double(), row.double(), column.double()
        matrix = images * both - row[:, :, None] * column[:, None, :]
        yield Covariance(matrix, row * (images - row), column * (images - column))


def effective_dimension(covariance: Tensor) -> Tensor:
    """Effective dimension of covariance matrices (..., C, C): between 1 and C, or nan where nothing varies.

    It is (sum of the eigenvalues)^2 / (sum of their squares). The first sum is the trace and the second the sum of all
    squared entries, so no matrix has to be decomposed.

    >>> effective_dimension(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))
    tensor(2.)
    """
    trace = covariance.diagonal(dim1=-2, dim2=-1).sum(-1)
    return trace.square() / covariance.square().sum((-2, -1))


def strongest(covariance: Covariance) -> Tensor:
    """Largest absolute correlation of each column with any row, (places, columns); nan for a constant column."""
    scale = (covariance.rows[:, :, None] * covariance.columns[:, None, :]).sqrt()
    correlation = torch.where(scale > 0, covariance.matrix.abs() / scale, 0.0)
    return torch.where(covariance.columns > 0, correlation.amax(1), torch.nan)
