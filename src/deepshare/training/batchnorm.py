"""BatchNorm's running statistics, estimated anew from batches with the weights as they are.

In training they are a mean over steps whose weights differ, in which one batch with huge squares stays for long.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the BatchNorm layers that keep running statistics."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Set running mean and variance to their means over batches; weights stay, and so do the modes of all modules.

    Each layer normalises a batch by the batch's own statistics, as in training. Everything else is as in inference.
    """
    modes = {module: module.training for module in model.modules()}
    layers = batch_norms(model)
    momenta = [layer.momentum for layer in layers]
    model.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the mean of all batches
        layer.training = True
    try:
        for images in batches:
            model(images)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for module, training in modes.items():
            module.training = training
