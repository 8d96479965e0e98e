from typing import Any

import pytest
import torch
from torch import nn

from deepshare.errors import ModelNameError
from deepshare.sharing.sites import find_sites
from deepshare.zoo import deeplabv3_mobilenetv2
from tests.zoo import reference

BACKBONE = (
    2 * [(32, 256)] + [(96, 256), (96, 128)] + 3 * [(144, 128)] + [(144, 64)]
    + 6 * [(192, 64)] + 8 * [(384, 64)] + 6 * [(576, 64)] + 6 * [(960, 64)]
)  # fmt: skip
HEAD = 5 * [(512, 64)]


@pytest.mark.parametrize(
    ("image_pool_relu", "shapes", "neurons"),
    [(False, BACKBONE + HEAD, 85_262_336), (True, [*BACKBONE, (512, 1), *HEAD], 85_262_848)],
)
def test_sites_are_those_of_the_description(image_pool_relu: bool, shapes: list[tuple[int, int]], neurons: int) -> None:
    with torch.device("meta"):
        model = deeplabv3_mobilenetv2(image_pool_relu=image_pool_relu)
    sites = find_sites(model, (3, 512, 512))
    assert len(sites) == 39 + image_pool_relu
    assert [site.shape for site in sites] == [(channels, size, size) for channels, size in shapes]
    assert sites.neurons == neurons
    assert [site.name for site in sites][-5:] == [f"aspp.branches.{n}.act" for n in range(4)] + ["aspp.bottleneck.act"]


def test_parameter_count() -> None:
    with torch.device("meta"):
        model = deeplabv3_mobilenetv2()
    stages = [(1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1)]
    inputs, backbone = 32, 3 * 32 * 9 + 2 * 32
    for expansion, outputs in [(expansion, outputs) for expansion, outputs, blocks in stages for _ in range(blocks)]:
        inner = inputs * expansion
        expand = inputs * inner + 2 * inner if expansion > 1 else 0
        backbone += expand + inner * 9 + 2 * inner + inner * outputs + 2 * outputs
        inputs = outputs
    head = 2 * (320 * 512 + 1024) + 3 * (320 * 512 * 9 + 1024) + 5 * 512 * 512 * 9 + 1024 + 512 * 150 + 150
    assert (backbone, head) == (1_811_712, 16_630_934)
    assert sum(parameter.numel() for parameter in model.parameters()) == 18_442_646


def test_backbone_equals_torchvisions_once_that_has_our_strides_and_dilations() -> None:
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    torch.manual_seed(0)
    ours = reference.shake(deeplabv3_mobilenetv2(aspp_width=8)).double()
    theirs = models.mobilenet_v2(weights=None).features[:-1].double().eval()
    own_tensors = [tensor for name, tensor in ours.state_dict().items() if name.startswith(("conv1", "layer"))]
    for target, source in zip(theirs.state_dict().values(), own_tensors, strict=True):
        target.copy_(source)
    _plain_relus_and_output_stride_8(theirs)

    x = torch.randn(1, 3, 65, 65, dtype=torch.double)
    features = []
    ours.aspp.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    ours(x)
    assert features[0].shape == (1, 320, 9, 9)
    torch.testing.assert_close(features[0], theirs(x))


def _plain_relus_and_output_stride_8(features: nn.Sequential) -> None:
    dilations = [1] * 7 + [2] * 7 + [4] * 4
    strides = [2, 1, 2, 1, 2] + [1] * 13
    for block, dilation, stride in zip(features, dilations, strides, strict=True):
        for name, module in list(block.named_modules()):
            if isinstance(module, nn.ReLU6):
                block.set_submodule(name, nn.ReLU())
            elif isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
                module.stride, module.dilation, module.padding = (stride,) * 2, (dilation,) * 2, (dilation,) * 2


@pytest.mark.parametrize("image_pool_relu", [False, True])
def test_head_equals_the_reference(image_pool_relu: bool) -> None:
    torch.manual_seed(0)
    plain = deeplabv3_mobilenetv2(num_classes=5, aspp_width=16, image_pool_relu=image_pool_relu, width=0.25)
    model = reference.shake(plain).double()
    features = []
    model.aspp.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    x = torch.randn(2, 3, 64, 96, dtype=torch.double)
    logits = model(x)
    expected = reference.aspp_head(model.state_dict(), features[0], (64, 96), image_pool_relu)
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("size", [(64, 64), (60, 83)])
def test_output_has_the_size_of_the_image_and_gradients_flow(size: tuple[int, int]) -> None:
    model = deeplabv3_mobilenetv2(num_classes=5, aspp_width=8, width=0.25)
    logits = model(torch.randn(2, 3, *size))
    assert logits.shape == (2, 5, *size)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_drops_a_tenth_of_the_heads_channels_in_training_only(training: bool) -> None:
    torch.manual_seed(0)
    dropout = deeplabv3_mobilenetv2(aspp_width=8, width=0.25).train(training).dropout
    maps = dropout(torch.ones(100, 100, 2, 2)).flatten(2)
    assert torch.equal(maps.amin(2), maps.amax(2))
    assert (maps == 0).float().mean().item() == pytest.approx(0.1 if training else 0.0, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_classes": 0}, "num_classes must be a whole number of at least 1, not 0"),
        ({"width": 0}, "width must be a number above 0, not 0"),
        ({"width": "half"}, "width must be a number above 0, not 'half'"),
    ],
)
def test_refuses_what_it_cannot_build(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelNameError, match=words):
        deeplabv3_mobilenetv2(**arguments)
