import sys
from typing import Any

import pytest
import torch
from torch import nn

from deepshare.errors import ModelNameError
from deepshare.zoo import build, default_input_size, known_names

LIBRARIES = {"timm": "timm", "torchvision": "torchvision", "smp": "segmentation_models_pytorch"}


def needs(library: str) -> None:
    pytest.importorskip(LIBRARIES[library], reason=f"{library} is not installed")


@pytest.mark.parametrize("name", known_names())
def test_own_networks_run_at_their_default_size(name: str) -> None:
    with torch.device("meta"):
        model = build(name, num_classes=7)
        logits = model.eval()(torch.empty(1, *default_input_size(name)))
    assert logits.shape[:2] == (1, 7)


def test_names_with_a_depth_build_that_depth() -> None:
    relus = {
        name: sum(isinstance(module, nn.ReLU) for module in build(name, width=4).modules())
        for name in ("resnet10", "resnet18", "resnet26", "resnet34")
    }
    assert relus == {"resnet10": 8, "resnet18": 16, "resnet26": 24, "resnet34": 32}


@pytest.mark.parametrize(
    ("name", "size", "arguments", "output"),
    [
        ("timm:resnet18", (3, 224, 224), {"num_classes": 7, "channels": 1}, (2, 7)),
        ("timm:resnet18.a1_in1k", (3, 224, 224), {"num_classes": 7, "in_chans": 1}, (2, 7)),
        ("timm:inception_v3", (3, 299, 299), {}, (2, 1000)),
        ("torchvision:resnet18", (3, 224, 224), {"num_classes": 7}, (2, 7)),
        ("torchvision:googlenet", (3, 224, 224), {"num_classes": 7, "aux_logits": False}, (2, 7)),
        ("torchvision:inception_v3", (3, 299, 299), {}, (2, 1000)),
        ("smp:Unet/resnet18", (3, 256, 256), {"num_classes": 7, "channels": 1}, (2, 7, 256, 256)),
        ("smp:DeepLabV3Plus/resnet18", (3, 256, 256), {"num_classes": 7}, (2, 7, 256, 256)),
        ("smp:Unet/tu-resnet18", (3, 256, 256), {"norm_layer": nn.BatchNorm2d}, (2, 1, 256, 256)),
    ],
)
def test_bridges_build_by_name_in_our_words_or_theirs(
    name: str, size: tuple[int, int, int], arguments: dict[str, Any], output: tuple[int, ...]
) -> None:
    needs(name.partition(":")[0])
    assert default_input_size(name) == size
    channels = arguments.get("channels", arguments.get("in_chans", 3))
    with torch.device("meta"):
        model = build(name, **arguments)
        assert model.eval()(torch.empty(2, channels, *size[1:])).shape == output


def test_torchvision_segmentation_models_fetch_no_backbone() -> None:
    needs("torchvision")
    with torch.device("meta"):
        model = build("torchvision:fcn_resnet50", num_classes=7)
        output = model.eval()(torch.empty(1, *default_input_size("torchvision:fcn_resnet50")))
    assert output["out"].shape == (1, 7, 520, 520)


@pytest.mark.parametrize("library", LIBRARIES)
def test_known_names_of_a_library_are_names_that_build_answers_to(library: str) -> None:
    needs(library)
    names = known_names(library)
    assert len(names) == len(set(names)) > 80
    for name in names[:: len(names) // 20]:
        assert len(default_input_size(name)) == 3


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("resnt18", '"resnet18"'),
        ("WRN22-8", '"wrn22-8"'),
        ("", "did you mean"),
        ("tim:resnet50", '"timm"'),
        ("timm:resnett50", '"resnet50"'),
        ("torchvision:vgg16bn", '"vgg16_bn"'),
        ("torchvision:fasterrcnn_resnet50_fpn", '"fcn_resnet50"'),
        ("smp:Unett/resnet18", '"Unet"'),
        ("smp:Unet/resnt18", '"resnet18"'),
        ("smp:Unet/tu-resnett50", '"tu-resnet50"'),
        ("smp:Unet", "smp:Unet/resnet18"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(name: str, nearest: str) -> None:
    for ask in (build, default_input_size):
        with pytest.raises(ModelNameError, match=nearest) as caught:
            ask(name)
        assert "\n" not in str(caught.value)


def test_unknown_libraries_are_answered_with_the_nearest() -> None:
    with pytest.raises(ModelNameError, match='"timm"'):
        known_names("tim")


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("resnet18", {"foo": 1}, "resnet18 cannot be built with foo=1: .*'foo'"),
        ("resnet18", {"depth": 11}, "no depth 11"),
        ("wrn22-8", {"channels": 1}, "wrn22-8 cannot be built with channels=1"),
        ("timm:resnet18", {"foo": 1}, "timm:resnet18 cannot be built with foo=1: .*'foo'"),
        ("timm:resnet18", {"pretrained": True}, "pretrained"),
        ("timm:resnet18.nope", {}, "has no tag nope: take one of"),
        ("torchvision:resnet18", {"weights": "DEFAULT"}, "weights"),
        ("torchvision:resnet18", {"channels": 1}, "built with channels=1"),
        ("smp:Unet/resnet18", {"foo": 1, "bar": 2}, "smp:Unet/resnet18 does not take bar, foo"),
        ("smp:Unet/resnet18", {"encoder_weights": "imagenet"}, "encoder_weights"),
    ],
)
def test_wrong_arguments_get_one_line(name: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelNameError, match=words) as caught:
        build(name, **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["timm:resnet18", "torchvision:resnet18", "smp:Unet/resnet18"])
def test_a_missing_library_is_named_with_the_cure(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, LIBRARIES[name.partition(":")[0]], None)
    with pytest.raises(ModelNameError, match=r"pip install deepshare\[zoo\]"):
        build(name)


def test_a_library_that_does_not_fit_torch_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist\nmore")

    monkeypatch.setattr("deepshare.zoo.names.import_module", fail)
    with pytest.raises(ModelNameError, match=r"with the installed torch \(operator torchvision::nms") as caught:
        build("torchvision:resnet18")
    assert "\n" not in str(caught.value)
