"""Linear steps on their own: exact mod 2^64, for sums of layers of all kinds."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare.private.engines.gateshare.protocols.linear import Diagonal, LinearStep, LinearTerm, sums_of_layers
from deepshare.private.ir.program import Convolution, Linear
from deepshare.private.ir.trace import translate
from tests.private.engines.gateshare.alone import clear_steps, run_steps

BITS = 8


def whole(*shape: int) -> Tensor:
    """Weights that fixed point holds exactly."""
    return torch.randint(-500, 500, shape).double() / 2**BITS


def step(layers: list[Convolution | Linear | Diagonal], takes: tuple[int, ...], shape: tuple[int, ...]) -> LinearStep:
    terms = tuple(LinearTerm(label=7 + n, layer=layer, bits=BITS, takes=takes) for n, layer in enumerate(layers))
    return LinearStep(number=1, operation=0, inputs=(0,) * len(layers), shape=shape, scale=16, terms=terms)


def test_fully_connected_and_diagonal_layers_in_one_sum() -> None:
    full = Linear("full", (0,), (5,), weight=whole(5, 5), bias=whole(5))
    diagonal = Diagonal(whole(5), whole(5))
    one = step([full, diagonal], (5,), (5,))
    x = torch.randint(-(2**63), 2**63 - 1, (3, 5))
    weight = (torch.diag(diagonal.weight) + full.weight) * 2**BITS
    expected = x @ weight.long().T + ((full.bias + diagonal.bias) * 2**16).long()
    assert torch.equal(run_steps([one], x)[1], expected)
    assert torch.equal(clear_steps([one], x)[1], expected)


def test_convolutions() -> None:
    layer = Convolution("conv", (0,), (4, 4, 4), weight=whole(4, 2, 3, 3), bias=whole(4), padding=(1, 1))
    x = torch.randint(-(2**20), 2**20, (2, 2, 4, 4))
    result = run_steps([step([layer], (2, 4, 4), (4, 4, 4))], x)[1]
    expected = F.conv2d(x.double(), layer.weight * 2**BITS, layer.bias * 2**16, padding=1)
    assert torch.equal(result, expected.long())


def test_a_sum_that_alone_reads_layers_is_one_step() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(3, 3, 1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            once = self.c(x)
            return ((self.a(x) + self.b(x)) + once).relu() + once

    program = translate(Sums(), (3, 4, 4))
    kinds = [operation.kind for operation in program.operations]
    c, a, b = (i for i, kind in enumerate(kinds) if kind == "Convolution")
    both = next(i for i, kind in enumerate(kinds) if kind == "Add")
    # The third layer is read twice: it has a step of its own, and so has the sum with it.
    assert sums_of_layers(program) == {c: (c,), a: (), b: (), both: (a, b)}
