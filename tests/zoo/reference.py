"""Independent reference implementations of the networks, as plain functions of a state_dict."""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Weights = Mapping[str, Tensor]
Network = TypeVar("Network", bound=nn.Module)


def shake(model: Network, seed: int = 0) -> Network:
    """Give every BatchNorm and bias values of its own, so that leaving one out or mixing two up shows."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        if name.endswith("running_mean") or (name.endswith("bias") and tensor.dim() == 1):
            tensor.uniform_(-0.5, 0.5, generator=generator)
        elif name.endswith("running_var") or (name.endswith("weight") and tensor.dim() == 1):
            tensor.uniform_(0.5, 1.5, generator=generator)
    return model.eval()


def bn(w: Weights, name: str, x: Tensor) -> Tensor:
    scale = w[f"{name}.weight"] / (w[f"{name}.running_var"] + 1e-5).sqrt()
    return (x - w[f"{name}.running_mean"][:, None, None]) * scale[:, None, None] + w[f"{name}.bias"][:, None, None]


def conv(w: Weights, name: str, x: Tensor, stride: int = 1, dilation: int = 1) -> Tensor:
    kernel = w[f"{name}.weight"]
    padding = dilation * (kernel.shape[-1] - 1) // 2
    return F.conv2d(x, kernel, None, stride, padding, dilation, x.shape[1] // kernel.shape[1])


def resnet18(w: Weights, x: Tensor) -> Tensor:
    x = bn(w, "bn1", conv(w, "conv1", x))
    for stage in range(1, 5):
        for block in range(2):
            name = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            out = bn(w, f"{name}.bn1", conv(w, f"{name}.conv1", x, stride)).clamp(min=0)
            out = bn(w, f"{name}.bn2", conv(w, f"{name}.conv2", out))
            if stage > 1 and block == 0:
                x = bn(w, f"{name}.shortcut.1", conv(w, f"{name}.shortcut.0", x, stride))
            x = (out + x).clamp(min=0)
    return x.mean((2, 3)) @ w["fc.weight"].T + w["fc.bias"]


def resnet26(w: Weights, x: Tensor) -> Tensor:
    x = F.max_pool2d(bn(w, "bn1", conv(w, "conv1", x)).clamp(min=0), 3, 2, 1)
    for stage in range(1, 5):
        for block in range(2):
            name = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            out = bn(w, f"{name}.bn1", conv(w, f"{name}.conv1", x)).clamp(min=0)
            out = bn(w, f"{name}.bn2", conv(w, f"{name}.conv2", out, stride)).clamp(min=0)
            out = bn(w, f"{name}.bn3", conv(w, f"{name}.conv3", out))
            if block == 0:
                x = bn(w, f"{name}.shortcut.1", conv(w, f"{name}.shortcut.0", x, stride))
            x = (out + x).clamp(min=0)
    return x.mean((2, 3)) @ w["fc.weight"].T + w["fc.bias"]


def wide_resnet(w: Weights, x: Tensor, blocks: int) -> Tensor:
    x = conv(w, "conv1", x)
    for stage in range(1, 4):
        for block in range(blocks):
            name = f"block{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            active = bn(w, f"{name}.bn1", x).clamp(min=0)
            out = bn(w, f"{name}.bn2", conv(w, f"{name}.conv1", active, stride)).clamp(min=0)
            out = conv(w, f"{name}.conv2", out)
            x = out + (conv(w, f"{name}.shortcut", active, stride) if block == 0 else x)
    return bn(w, "bn1", x).mean((2, 3)) @ w["fc.weight"].T + w["fc.bias"]


def aspp_head(w: Weights, features: Tensor, size: tuple[int, int], image_pool_relu: bool) -> Tensor:
    mean = features.mean((2, 3), keepdim=True)
    mean = bn(w, "aspp.image_pool.bn", conv(w, "aspp.image_pool.conv", mean))
    mean = mean.clamp(min=0) if image_pool_relu else mean
    views = [F.interpolate(mean, size=features.shape[2:], mode="bilinear", align_corners=False)]
    for number, dilation in enumerate((1, 12, 24, 36)):
        name = f"aspp.branches.{number}"
        views.append(bn(w, f"{name}.bn", conv(w, f"{name}.conv", features, dilation=dilation)).clamp(min=0))
    merged = bn(w, "aspp.bottleneck.bn", conv(w, "aspp.bottleneck.conv", torch.cat(views, 1))).clamp(min=0)
    logits = F.conv2d(merged, w["classifier.weight"], w["classifier.bias"])
    return F.interpolate(logits, size=size, mode="bilinear", align_corners=False)
