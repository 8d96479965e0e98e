"""Networks of one function, and their programs compared with them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate

SIZE = (2, 8, 9)
MAP = 2 * 8 * 9


def settled(model: nn.Module) -> nn.Module:
    """Running statistics and affine weights that folding could get wrong."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            for tensor in (module.running_mean, module.running_var, module.weight.data, module.bias.data):
                assert tensor is not None
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return model.eval()


def same(model: nn.Module, size: tuple[int, ...]) -> Program:
    """The program, after comparing it with the network on images that translation has not seen."""
    program = translate(model, size)
    images = torch.randn(3, *size, dtype=torch.float64)
    with torch.no_grad():
        expected = model.double()(images)
    torch.testing.assert_close(program.evaluate(images), expected, rtol=0, atol=1e-9)
    return program


class Function(nn.Module):
    """A network of one function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Constants(nn.Module):
    """Layers and constants for functions of a network and its input."""

    def __init__(self, function: Callable[["Constants", Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.slopes = function, nn.PReLU(2)
        self.scale, self.one = nn.Parameter(torch.randn(2, 1, 1)), nn.Parameter(torch.tensor(0.3))
        self.register_buffer("places", torch.randn(1, 2, 8, 9))
        self.wider = nn.ConvTranspose2d(2, 4, 3, 2, 1, output_padding=1, groups=2, dilation=2)
        self.line, self.features = nn.Conv1d(2, 3, 3, 2, 1), nn.Linear(9, 5)
        self.matrix = nn.Parameter(torch.randn(80, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def check_function(function: Callable[[nn.Module, Tensor], Tensor], comparisons: int) -> None:
    """A function gives these comparisons, the same numbers, and an outline that is read as it was written."""
    torch.manual_seed(0)
    program = same(Constants(function), SIZE)
    assert program.comparisons == comparisons
    assert outline.dump(outline.parse(outline.dump(program))) == outline.dump(program)
