"""DeepLabV3 on MobileNetV2 for semantic segmentation, with plain ReLUs and an output stride of 8."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepshare.errors import ModelNameError
from deepshare.zoo.resnet import check_counts, kaiming_start


class Stage(NamedTuple):
    """One stage of MobileNetV2; the stride is that of its first block."""

    expansion: int
    outputs: int
    blocks: int
    stride: int
    dilation: int


STAGES = (
    Stage(1, 16, 1, stride=1, dilation=1),
    Stage(6, 24, 2, stride=2, dilation=1),
    Stage(6, 32, 3, stride=2, dilation=1),
    Stage(6, 64, 4, stride=1, dilation=2),
    Stage(6, 96, 3, stride=1, dilation=2),
    Stage(6, 160, 3, stride=1, dilation=4),
    Stage(6, 320, 1, stride=1, dilation=4),
)
STEM_WIDTH = 32
ASPP_DILATIONS = (1, 12, 24, 36)


class ConvNorm(nn.Sequential):
    """Padded convolution, BatchNorm and an optional ReLU."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, dilation: int = 1, groups: int = 1, relu: bool
    ) -> None:
        super().__init__()
        padding = dilation * (kernel // 2)
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups, bias=False)
        self.bn = nn.BatchNorm2d(outputs)
        if relu:
            self.act = nn.ReLU()


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, linear projection; with a shortcut if the shape does not change."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int, dilation: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.residual = stride == 1 and inputs == outputs
        self.expand = ConvNorm(inputs, inner, 1, relu=True) if expansion > 1 else nn.Identity()
        self.dw = ConvNorm(inner, inner, 3, stride=stride, dilation=dilation, groups=inner, relu=True)
        self.project = ConvNorm(inner, outputs, 1, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the projection, plus the input if the shape does not change."""
        out: Tensor = self.project(self.dw(self.expand(x)))
        return x + out if self.residual else out


class ASPP(nn.Module):
    """Four dilated convolutions and the pooled map, concatenated and merged by one convolution."""

    def __init__(self, inputs: int, width: int, image_pool_relu: bool) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.image_pool = ConvNorm(inputs, width, 1, relu=image_pool_relu)
        self.branches = nn.ModuleList(
            ConvNorm(inputs, width, 1 if dilation == 1 else 3, dilation=dilation, relu=True)
            for dilation in ASPP_DILATIONS
        )
        self.bottleneck = ConvNorm((len(ASPP_DILATIONS) + 1) * width, width, 3, relu=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the merged map."""
        # The pooled branch runs first, so that the sites after it have one shape and can share gates.
        pooled = self.image_pool(self.pool(x)).expand(-1, -1, *x.shape[-2:])
        views = [pooled, *(branch(x) for branch in self.branches)]
        merged: Tensor = self.bottleneck(torch.cat(views, dim=1))
        return merged


class DeepLabV3(nn.Module):
    """MobileNetV2 up to its last inverted residual, ASPP, and logits in the size of the image."""

    def __init__(self, num_classes: int, aspp_width: int, image_pool_relu: bool, width: float) -> None:
        super().__init__()
        inputs = _scaled(STEM_WIDTH, width)
        self.conv1 = ConvNorm(3, inputs, 3, stride=2, relu=True)
        for number, stage in enumerate(STAGES, start=1):
            outputs = _scaled(stage.outputs, width)
            self.add_module(f"layer{number}", _blocks(stage, inputs, outputs))
            inputs = outputs
        self.aspp = ASPP(inputs, aspp_width, image_pool_relu)
        self.dropout = nn.Dropout2d(0.1)
        self.classifier = nn.Conv2d(aspp_width, num_classes, 1)
        kaiming_start(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of shape (N, num_classes, H, W) for images of shape (N, 3, H, W)."""
        features = self.conv1(x)
        for number in range(1, len(STAGES) + 1):
            features = self.get_submodule(f"layer{number}")(features)
        logits = self.classifier(self.dropout(self.aspp(features)))
        return F.interpolate(logits, size=x.shape[-2:], mode="bilinear", align_corners=False)


def deeplabv3_mobilenetv2(
    num_classes: int = 150, *, aspp_width: int = 512, image_pool_relu: bool = False, width: float = 1.0
) -> DeepLabV3:
    """Build the segmentation network of the ReLU-budget papers, with random weights.

    At 512x512 it has 39 sites and 85,262,336 ReLUs, or 40 and 85,262,848 with the ReLU on the pooled branch. The four
    branches of the head and its merging convolution run consecutively at the end, so their sites form one group.
    Training needs at least two images per batch, since BatchNorm on the pooled branch sees one pixel per image.

    Args:
        num_classes: Number of outputs per pixel.
        aspp_width: Channels of each branch of the head.
        image_pool_relu: Add a ReLU to the pooled branch.
        width: Width multiplier of the backbone; channels are rounded to multiples of 8.

    Raises:
        ModelNameError: A number is below one, or `width` is not positive.

    >>> deeplabv3_mobilenetv2(num_classes=11, aspp_width=32, width=0.25).classifier.out_channels
    11
    """
    check_counts("deeplabv3_mobilenetv2", num_classes=num_classes, aspp_width=aspp_width)
    if not isinstance(width, int | float) or not 0 < width < float("inf"):
        raise ModelNameError(f"deeplabv3_mobilenetv2: width must be a number above 0, not {width!r}")
    return DeepLabV3(num_classes, aspp_width, image_pool_relu, width)


def _blocks(stage: Stage, inputs: int, outputs: int) -> nn.Sequential:
    blocks = nn.Sequential()
    for index in range(stage.blocks):
        stride = stage.stride if index == 0 else 1
        blocks.append(InvertedResidual(inputs, outputs, stage.expansion, stride, stage.dilation))
        inputs = outputs
    return blocks


def _scaled(channels: int, width: float) -> int:
    return max(8, 8 * round(channels * width / 8))
