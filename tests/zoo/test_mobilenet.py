"""Weights of torchvision's MobileNetV2 in the backbone of DeepLabV3."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from deepshare.errors import CheckpointError
from deepshare.training.pretrained import start_from
from deepshare.zoo import deeplabv3_mobilenetv2, resnet18
from tests.zoo.reference import shake

models: Any = pytest.importorskip("torchvision.models", reason="torchvision is not installed")


def mobilenet(width: float = 1.0) -> dict[str, Tensor]:
    theirs: nn.Module = shake(models.mobilenet_v2(weights=None, width_mult=width))
    return theirs.state_dict()


def save(tensors: dict[str, Tensor], path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return path


def backbone_of(model: nn.Module) -> list[Tensor]:
    return [tensor for name, tensor in model.state_dict().items() if name.startswith(("conv1", "layer"))]


@pytest.mark.parametrize("name", ["mobilenet_v2.pth", "mobilenet_v2.safetensors"])
def test_the_backbone_is_taken_and_the_head_stays(name: str, tmp_path: Path) -> None:
    theirs = mobilenet()
    model = deeplabv3_mobilenetv2(num_classes=5, aspp_width=8)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert start_from(model, save(theirs, tmp_path / name), 5) == ["aspp", "classifier"]
    # The order of the tensors is the same in both, and known to give the same features: see test_deeplab.py.
    expected = [tensor for key, tensor in theirs.items() if not key.startswith(("features.18.", "classifier."))]
    for ours, tensor in zip(backbone_of(model), expected, strict=True):
        assert torch.equal(ours, tensor)
    after = model.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in after if key.startswith(("aspp", "classifier")))


def test_files_without_counters_are_taken(tmp_path: Path) -> None:
    theirs = {key: value for key, value in mobilenet().items() if not key.endswith("num_batches_tracked")}
    model = deeplabv3_mobilenetv2(num_classes=5, aspp_width=8)
    assert start_from(model, save(theirs, tmp_path / "old.pth"), 5) == ["aspp", "classifier"]
    assert torch.equal(model.get_parameter("layer7.0.project.bn.bias"), theirs["features.17.conv.3.bias"])


def test_a_narrow_one_fits_a_narrow_backbone_only(tmp_path: Path) -> None:
    path = save(mobilenet(0.5), tmp_path / "narrow.pth")
    assert start_from(deeplabv3_mobilenetv2(num_classes=5, aspp_width=8, width=0.5), path, 5) == ["aspp", "classifier"]
    model = deeplabv3_mobilenetv2(num_classes=5, aspp_width=8)
    before = [tensor.clone() for tensor in backbone_of(model)]
    words = (
        r"narrow.pth holds a MobileNetV2 of another width .*\(16, 3, 3, 3\), here it is \(32, 3, 3, 3\)\): change model"
    )
    with pytest.raises(CheckpointError, match=words):
        start_from(model, path, 5)
    assert all(torch.equal(old, new) for old, new in zip(before, backbone_of(model), strict=True))


def test_what_fits_neither_is_refused_in_one_line(tmp_path: Path) -> None:
    model = deeplabv3_mobilenetv2(num_classes=5, aspp_width=8)
    theirs = mobilenet()
    del theirs["features.5.conv.1.0.weight"]
    path = save(theirs, tmp_path / "torn.pth")
    with pytest.raises(CheckpointError, match=r"torn.pth holds a MobileNetV2 without features\.5\.conv\.1\.0\.weight"):
        start_from(model, path, 5)
    other = save(resnet18(num_classes=5, width=8).state_dict(), tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match=r"^[^\n]*other.pth holds the weights of another network[^\n]*$"):
        start_from(model, other, 5)
    with pytest.raises(CheckpointError, match="holds the weights of another network"):
        start_from(resnet18(num_classes=5, width=8), save(mobilenet(0.25), tmp_path / "narrow.pth"), 5)


def test_a_head_for_other_classes_stays_too(tmp_path: Path) -> None:
    path = save(deeplabv3_mobilenetv2(num_classes=7, aspp_width=8, width=0.25).state_dict(), tmp_path / "seven.pth")
    assert start_from(deeplabv3_mobilenetv2(num_classes=7, aspp_width=8, width=0.25), path, 7) == []
    assert start_from(deeplabv3_mobilenetv2(num_classes=5, aspp_width=8, width=0.25), path, 5) == ["classifier"]
