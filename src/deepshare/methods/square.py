"""Shared gates with a square beside them, which is not in the paper: y = x (alpha gate + beta) + SCALE square x^2.

Under MPC a square costs one product and no comparison. It makes up for missing gates, as AutoReP's quadratics do. A
site that starts from a trained network may fade from its own ReLU to this, or to shared gates alone.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from deepshare.sharing.activation import laid_out
from deepshare.sharing.form import NeuronActivation, NeuronForm
from deepshare.sharing.gates import Around, Fading, SharedReLU, fading

SCALE = 0.1  # as AutoReP's: an optimiser's step moves the square a tenth as far as alpha and beta


class Square(NeuronActivation):
    """SCALE square[c] x^2; the squares start at 0."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.square = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Square x of shape (N, C) or (N, C, H, W)."""
        factor = self.factor()
        return x * x * (laid_out(factor.view(-1, 1, 1), x) if x.dim() == 4 else factor.to(x.dtype))

    def factor(self) -> Tensor:
        """Return the factor of the square of each channel."""
        return SCALE * self.square

    def form(self) -> NeuronForm:
        """No gate, and the square alone."""
        square = self.factor().view(-1, 1, 1)
        zero = torch.zeros_like(square)
        return NeuronForm(mask=zero.bool(), factors=(square, zero, zero))


class CurvedReLU(Around, Fading):
    """Activation with shared gates and a square."""

    activation: SharedReLU

    def __init__(self, activation: SharedReLU) -> None:
        super().__init__(activation)
        self.curve, self.replaces = Square(activation.channels), activation.replaces

    def forward(self, x: Tensor) -> Tensor:
        """Activate x."""
        y = self.curve(x) + self.activation(x)  # first the square: an engine can compute gates while it is on its way
        return self.faded(y, x)


def curve(model: nn.Module) -> None:
    """Add a square to every site of a shared network that has none."""
    curved = {site.activation for site in curved_relus(model)}
    for name, module in list(model.named_modules()):
        if isinstance(module, SharedReLU) and module not in curved:
            model.set_submodule(name, CurvedReLU(module).to(module.alpha).train(module.training))


def curved_relus(model: nn.Module) -> Iterator[CurvedReLU]:
    """Iterate over all sites with a square in a model."""
    return (module for module in model.modules() if isinstance(module, CurvedReLU))


def set_own(model: nn.Module, share: float) -> None:
    """Set the share of the original ReLU in the output of every site."""
    for _, site in fading(model):
        site.own = share


def own_share(epoch: int, epochs: int) -> float:
    """Return the share of the original ReLU in an epoch, counted from 0, if it fades within `epochs`.

    The steps become smaller, since the last bit of a ReLU is missed most.

    >>> [round(own_share(epoch, 4), 4) for epoch in range(6)]
    [0.5625, 0.25, 0.0625, 0.0, 0.0, 0.0]
    """
    return max(0.0, 1 - (epoch + 1) / epochs) ** 2 if epochs else 0.0
