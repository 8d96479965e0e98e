"""Channels last in memory, where it is safe."""

import torch
from torch import nn

from deepshare import zoo
from deepshare.training.build import layout_of


def test_channels_last_unless_a_strided_pointwise_convolution_is_narrow() -> None:
    assert layout_of(zoo.resnet18(10, width=16, depth=10)) == torch.channels_last
    assert layout_of(zoo.resnet18(10, width=8, depth=10)) == torch.contiguous_format
    assert layout_of(nn.Conv2d(3, 8, 3, stride=2)) == torch.channels_last
    assert layout_of(nn.Conv2d(3, 8, 1)) == torch.channels_last


def test_a_network_without_images_is_left_as_it_is() -> None:
    assert layout_of(nn.Linear(2, 2)) == torch.contiguous_format
