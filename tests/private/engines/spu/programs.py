"""Programs that use everything, small enough for CHEETAH."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare import plan, share, zoo
from deepshare.private.ir.program import Affine, GatedActivation, Operation, Program, Subtract
from deepshare.private.ir.trace import translate

SIZE = (2, 8, 8)


class Varied(nn.Module):
    """Every operation: dilation, groups, stride, sums, concatenation, shuffle, slices, padding,
    products, pooling of all kinds, interpolation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.wide = nn.Conv2d(4, 4, 3, padding=2, dilation=2)
        self.narrow = nn.Conv2d(4, 4, 1, bias=False)
        self.grouped = nn.Conv2d(8, 6, 3, stride=2, padding=1, groups=2)
        self.last = nn.Linear(6 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        y = F.relu(self.wide(x) + self.narrow(x))
        y = F.relu(y + x + self.wide(y))
        x = F.max_pool2d(torch.cat([x, y], 1), 3, 2, 1)
        x = x.view(-1, 2, 4, 4, 4).transpose(1, 2).flatten(1, 2)
        x = F.relu(self.grouped(x))
        x = torch.cat([x[:, 1::2], x[:, ::2] / 3 - 0.25], 1) * F.hardsigmoid(x.mean((2, 3), keepdim=True))
        x = F.pad(x, (1, 0, -1, 1))
        x = F.interpolate(x, scale_factor=2, mode="bilinear")
        x = F.avg_pool2d(F.adaptive_avg_pool2d(x, 3), 2, 1)
        return self.last(torch.flatten(x, 1))


def varied(kind: str) -> Program:
    """With shared gates, all ReLUs, masks, or masks and polynomials, one for each channel or each neuron."""
    torch.manual_seed(0)
    model: nn.Module = Varied().eval()
    if kind == "shared":
        model = share(model, plan(model, SIZE, "40%"), start="uniform").eval()
    program = translate(model, SIZE)
    return _changed_program(program, kind)


def resnet(kind: str, size: int = 16) -> Program:
    """A narrow ResNet-18."""
    torch.manual_seed(0)
    model = zoo.resnet18(width=4).eval()
    images = (3, size, size)
    if kind == "shared":
        return translate(share(model, plan(model, images, "5%"), start="uniform").eval(), images)
    return _changed_program(translate(model, images), kind)


def _changed_program(program: Program, kind: str) -> Program:
    """Other activations for its ReLUs, but not for those of max-pooling and of the hard sigmoid."""
    parts = {op for op in program.operations if op.inputs and isinstance(_first(program, op), Subtract | Affine)}
    return Program(tuple(op if op in parts else _changed(op, kind) for op in program.operations))


def _first(program: Program, operation: Operation) -> Operation:
    return program.operations[operation.inputs[0]]


def _changed(operation: Operation, kind: str) -> Operation:
    if not isinstance(operation, GatedActivation) or kind in ("relu", "shared"):
        return operation
    generator = torch.Generator().manual_seed(operation.elements)
    mask = torch.rand(operation.shape, generator=generator) < 0.2
    if kind == "masks":
        return replace(operation, mask=mask)
    shape = operation.shape if kind == "neurons" else (operation.shape[0], 1, 1)
    square, linear, constant = (torch.rand(shape, dtype=torch.float64, generator=generator) - 0.5 for _ in range(3))
    return replace(operation, mask=mask, square=square / 10, linear=linear, constant=constant)
