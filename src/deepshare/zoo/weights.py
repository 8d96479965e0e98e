"""Start values of the networks in this package."""

from torch import nn


def kaiming_start(model: nn.Module) -> None:
    """Fill every convolution and linear weight from He's normal distribution, in place."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
