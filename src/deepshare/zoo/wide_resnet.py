"""Wide ResNets with pre-activation blocks, in the variant of the ReLU-budget literature."""

import torch
from torch import Tensor, nn

from deepshare.errors import ModelNameError
from deepshare.zoo.resnet import check_counts, kaiming_start

STEM_WIDTH = 16


class PreActivationBlock(nn.Module):
    """BatchNorm, ReLU and convolution, twice; where the width changes, the activated input also feeds the shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.act1 = nn.ReLU()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.act2 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both paths, without activation."""
        activated = self.act1(self.bn1(x))
        out: Tensor = self.conv2(self.act2(self.bn2(self.conv1(activated))))
        return out + (x if self.shortcut is None else self.shortcut(activated))


class WideResNet(nn.Module):
    """Convolution, three stages of pre-activation blocks, BatchNorm, average pooling, linear layer."""

    def __init__(self, blocks: int, widen: int, num_classes: int) -> None:
        super().__init__()
        widths = [STEM_WIDTH * widen * scale for scale in (1, 2, 4)]
        self.conv1 = nn.Conv2d(3, STEM_WIDTH, 3, padding=1, bias=False)
        self.block1 = _stage(blocks, STEM_WIDTH, widths[0], stride=1)
        self.block2 = _stage(blocks, widths[0], widths[1], stride=2)
        self.block3 = _stage(blocks, widths[1], widths[2], stride=2)
        self.bn1 = nn.BatchNorm2d(widths[2])
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(widths[2], num_classes)
        kaiming_start(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (N, num_classes)."""
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        logits: Tensor = self.fc(torch.flatten(self.pool(self.bn1(x)), 1))
        return logits


def wide_resnet(depth: int = 22, widen: int = 8, num_classes: int = 100) -> WideResNet:
    """Build the Wide ResNet of the ReLU-budget papers, with random weights.

    The last BatchNorm has no activation, so WRN-22-8 has 18 sites, `block{1..3}.{0..2}.act{1,2}`, and 1,359,872 ReLUs
    at 32x32.

    Args:
        depth: Number of convolutions, of the form 6n + 4.
        widen: Multiplier of the widths 16, 32 and 64 of the three stages.
        num_classes: Number of outputs.

    Raises:
        ModelNameError: The depth is not available, or a number is below one.

    >>> len(wide_resnet(16, widen=1).block1)
    2
    """
    check_counts("wide_resnet", depth=depth, widen=widen, num_classes=num_classes)
    blocks, rest = divmod(depth - 4, 6)
    if rest or blocks < 1:
        raise ModelNameError(f"wide_resnet: there is no depth {depth}: give 10, 16, 22, 28 or another 6n + 4")
    return WideResNet(blocks, widen, num_classes)


def _stage(blocks: int, inputs: int, outputs: int, stride: int) -> nn.Sequential:
    rest = [PreActivationBlock(outputs, outputs, 1) for _ in range(blocks - 1)]
    return nn.Sequential(PreActivationBlock(inputs, outputs, stride), *rest)
