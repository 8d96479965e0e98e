"""A convolution with a stride, and what takes its place: the same numbers."""

import pytest
import torch

from deepshare.private.engines.gateshare.crypto.limb_matmul import Geometry, plain_weight
from deepshare.private.engines.gateshare.crypto.phases import Phases
from deepshare.private.ir.program import Convolution


@pytest.mark.parametrize(
    ("side", "kernel", "moves", "channels"),
    [
        ((8, 8), (3, 3), Geometry((2, 2), (1, 1)), 4),
        ((8, 6), (1, 1), Geometry((2, 2)), 1),  # a fourth of the positions is read
        ((7, 9), (1, 1), Geometry((2, 2)), 1),
        ((7, 9), (3, 3), Geometry((2, 2), (1, 1)), 4),
        ((12, 12), (7, 7), Geometry((2, 2), (3, 3)), 4),
        ((9, 12), (5, 3), Geometry((3, 2), (2, 1), (1, 1), 2), 6),
        ((12, 12), (3, 3), Geometry((2, 2), (2, 2), (2, 2)), 1),  # places two apart all are even
        ((8, 8), (3, 3), Geometry((1, 2), (1, 1)), 2),
        ((8, 8), (4, 4), Geometry((4, 4)), 16),  # patches
    ],
)
def test_results_are_the_same(side: tuple[int, int], kernel: tuple[int, int], moves: Geometry, channels: int) -> None:
    torch.manual_seed(sum(side))
    takes, outputs = (4, *side), 6
    W = torch.randint(-500, 500, (outputs, takes[0] // moves.groups, *kernel))
    x = torch.randint(-(2**63), 2**63 - 1, (2, *takes))
    expected = plain_weight(W, moves)(x)
    shape = tuple(expected.shape[1:])
    layer = Convolution("conv", (0,), shape, W.double(), torch.zeros(outputs), *_of(moves))
    phases = Phases.of(layer, takes)
    assert phases is not None and len(phases.read) == channels
    assert phases.takes[0] == takes[0] * channels
    assert torch.equal(plain_weight(phases.kernels(W), phases.geometry)(phases.split(x)), expected)


@pytest.mark.parametrize(
    "moves", [Geometry(padding=(1, 1)), Geometry((2, 2)), Geometry((2, 2), (2, 2)), Geometry((3, 3), (0, 1))]
)
def test_without_a_stride_or_with_a_result_of_another_size_nothing_changes(moves: Geometry) -> None:
    layer = Convolution("conv", (0,), (2, 1, 1), torch.ones(2, 3, 3, 3), torch.zeros(2), *_of(moves))
    assert Phases.of(layer, (3, 8, 8)) is None


def _of(moves: Geometry) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]:
    return moves.stride, moves.padding, moves.dilation, moves.groups
