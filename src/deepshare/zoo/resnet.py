"""ResNets for small images, in the variant of the ReLU-budget literature."""

import torch
from torch import Tensor, nn

from deepshare.errors import ModelNameError

BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 26: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; the second activation follows the sum."""

    expansion = 1

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False)).append(nn.BatchNorm2d(outputs))
        self.act2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the activated sum of both paths."""
        out = self.act1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out)) + self.shortcut(x)
        activated: Tensor = self.act2(out)
        return activated


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1, the last of which widens, and a shortcut; an activation after each."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.act2 = nn.ReLU()
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False)).append(nn.BatchNorm2d(outputs))
        self.act3 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Return the activated sum of both paths."""
        out = self.act1(self.bn1(self.conv1(x)))
        out = self.act2(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out)) + self.shortcut(x)
        activated: Tensor = self.act3(out)
        return activated


Block = type[BasicBlock] | type[Bottleneck]


class ResNet(nn.Module):
    """Stem, four stages of blocks, average pooling, linear layer.

    The stem has no activation and no pooling, or both: ReLU and max-pooling that halves the map, as for large images.
    """

    def __init__(
        self,
        blocks: tuple[int, ...],
        num_classes: int,
        widths: tuple[int, ...],
        channels: int,
        *,
        stem_stride: int = 1,
        stem_pool: bool = False,
        block: Block = BasicBlock,
    ) -> None:
        super().__init__()
        first, second, third, fourth = widths
        wider = block.expansion
        self.conv1 = nn.Conv2d(channels, first, 3, stem_stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(first)
        self.stem = nn.Sequential(nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)) if stem_pool else nn.Sequential()
        self.layer1 = _stage(block, blocks[0], first, first, stride=1)
        self.layer2 = _stage(block, blocks[1], wider * first, second, stride=2)
        self.layer3 = _stage(block, blocks[2], wider * second, third, stride=2)
        self.layer4 = _stage(block, blocks[3], wider * third, fourth, stride=2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(wider * fourth, num_classes)
        kaiming_start(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (N, num_classes)."""
        x = self.stem(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(torch.flatten(self.pool(x), 1))
        return logits


def resnet18(
    num_classes: int = 100,
    *,
    width: int = 64,
    depth: int = 18,
    channels: int = 3,
    stem_stride: int = 1,
    stem_pool: bool = False,
) -> ResNet:
    """Build the ResNet-18 of the ReLU-budget papers, with random weights.

    The stem has no activation, so there are 16 sites, `layer{1..4}.{0,1}.act{1,2}`, with 491,520 ReLUs at 32x32 and
    1,966,080 at 64x64.

    Args:
        num_classes: Number of outputs.
        width: Channels of the first stage; the others have 2, 4 and 8 times as many.
        depth: 10, 18 or 34, for basic blocks per stage of 1-1-1-1, 2-2-2-2 or 3-4-6-3; 26, for 2-2-2-2 bottlenecks,
            whose outputs have four times the channels.
        channels: Channels of the image.
        stem_stride: Stride of the stem; 2 leaves a quarter of the ReLUs.
        stem_pool: End the stem with a ReLU and 3x3 max-pooling of stride 2, as networks for large images do.

    Raises:
        ModelNameError: The depth is not available, or a number is below one.

    >>> len(resnet18(10, width=16).layer1)
    2
    """
    check_counts("resnet", num_classes=num_classes, width=width, channels=channels, stem_stride=stem_stride)
    if depth not in BLOCKS:
        raise ModelNameError(f"resnet: there is no depth {depth!r}: give one of {', '.join(map(str, BLOCKS))}")
    return ResNet(
        BLOCKS[depth],
        num_classes,
        (width, 2 * width, 4 * width, 8 * width),
        channels,
        stem_stride=stem_stride,
        stem_pool=stem_pool,
        block=Bottleneck if depth == 26 else BasicBlock,
    )


def hybrenet(
    num_classes: int = 100,
    *,
    scales: tuple[int, int, int] = (5, 5, 3),
    width: int = 16,
    channels: int = 3,
    stem_stride: int = 1,
) -> ResNet:
    """Build a HybReNet, a ResNet-18 whose stages widen by other factors than 2, with random weights.

    With 5, 5 and 3 the stages have 65,536, 81,920, 102,400 and 76,800 ReLUs at 32x32: more critical stages have more.

    Args:
        num_classes: Number of outputs.
        scales: Width of the second, third and fourth stage relative to the one before.
        width: Channels of the first stage.
        channels: Channels of the image.
        stem_stride: Stride of the stem; 2 leaves a quarter of the ReLUs.

    Raises:
        ModelNameError: A number is below one.

    >>> hybrenet(10).fc.in_features
    1200
    """
    second, third, fourth = scales
    check_counts("hybrenet", num_classes=num_classes, width=width, channels=channels, stem_stride=stem_stride)
    widths = (width, width * second, width * second * third, width * second * third * fourth)
    return ResNet(BLOCKS[18], num_classes, widths, channels, stem_stride=stem_stride)


def _stage(block: Block, blocks: int, inputs: int, width: int, stride: int) -> nn.Sequential:
    rest = [block(block.expansion * width, width, 1) for _ in range(blocks - 1)]
    return nn.Sequential(block(inputs, width, stride), *rest)


def check_counts(network: str, **counts: int) -> None:
    """Check that every argument is a positive integer.

    Raises:
        ModelNameError: It is not; the message names the network, the argument and its value.
    """
    for argument, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ModelNameError(f"{network}: {argument} must be a whole number of at least 1, not {count!r}")


def kaiming_start(model: nn.Module) -> None:
    """Initialise every convolution and linear weight with Kaiming normal, in place."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
