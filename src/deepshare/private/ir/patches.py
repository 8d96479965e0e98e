"""Gates over several neurons: a cell is a set of neurons whose sum is compared with zero.

Cells are given as one number for each neuron, that of its cell, counted from 0.
"""

import torch
from torch import Tensor


def cells_of_patches(patches: Tensor, height: int, width: int) -> Tensor:
    """The cells of maps that are cut into patches; those at the edge may be smaller.

    Args:
        patches: Height and width of the patches of each channel, (C, 2).
        height: Of the maps.
        width: Of the maps.

    Returns:
        (C * height * width,).
    """
    rows, columns = torch.arange(height)[:, None], torch.arange(width)
    found, begin = [torch.empty(0, height, width, dtype=torch.long)], 0
    for tall, wide in patches.tolist():
        across = -(-width // wide)
        found.append((begin + rows // tall * across + columns // wide)[None])
        begin += -(-height // tall) * across
    return torch.cat(found).flatten()


def count_cells(cells: Tensor) -> int:
    """The number of cells."""
    return int(cells.max()) + 1 if len(cells) else 0


def sums(x: Tensor, cells: Tensor) -> Tensor:
    """The sum of each cell of neurons (N, ...): (N, cells)."""
    return x.new_zeros(len(x), count_cells(cells)).index_add_(1, cells, x.flatten(1))
