from typing import Any

import pytest
import torch
from torch import nn

from deepshare.errors import ModelNameError
from deepshare.sharing.sites import find_sites
from deepshare.zoo import resnet18
from tests.zoo import reference


@pytest.mark.parametrize(
    ("arguments", "size", "neurons"),
    [
        ({}, 32, 491_520),
        ({}, 64, 1_966_080),
        ({"width": 16}, 32, 122_880),
        ({"channels": 1, "num_classes": 10}, 8, 30_720),
        ({"depth": 10}, 32, 245_760),
        ({"depth": 26, "width": 16, "stem_stride": 2, "stem_pool": True}, 32, 29_824),
    ],
)
def test_relu_counts(arguments: dict[str, Any], size: int, neurons: int) -> None:
    with torch.device("meta"):
        model = resnet18(**arguments)
    assert find_sites(model, (arguments.get("channels", 3), size, size)).neurons == neurons


def test_sites_have_the_names_and_shapes_of_the_description() -> None:
    with torch.device("meta"):
        sites = find_sites(resnet18(), (3, 32, 32))
    expected = [
        (f"layer{stage}.{block}.act{act}", (64 * 2 ** (stage - 1),) + (32 // 2 ** (stage - 1),) * 2)
        for stage in (1, 2, 3, 4)
        for block in (0, 1)
        for act in (1, 2)
    ]
    assert [(site.name, site.shape) for site in sites] == expected
    assert {site.kind for site in sites} == {"module"}
    assert not sites.others


@pytest.mark.parametrize(("depth", "sites"), [(10, 8), (18, 16), (26, 24), (34, 32)])
def test_each_site_is_a_relu_of_its_own_that_leaves_its_input_alone(depth: int, sites: int) -> None:
    with torch.device("meta"):
        relus = [module for module in resnet18(depth=depth).modules() if isinstance(module, nn.ReLU)]
    assert len(relus) == sites
    assert not any(relu.inplace for relu in relus)


def test_parameter_count() -> None:
    with torch.device("meta"):
        model = resnet18(num_classes=100)
    stem = 3 * 64 * 9 + 2 * 64
    layer1 = 4 * (64 * 64 * 9 + 2 * 64)
    later = 0
    for width in (128, 256, 512):
        convolutions = width // 2 * width * 9 + 3 * width * width * 9 + width // 2 * width
        later += convolutions + 5 * 2 * width
    assert stem + layer1 + later + 512 * 100 + 100 == 11_220_132
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_220_132


def test_equals_the_reference() -> None:
    torch.manual_seed(0)
    model = reference.shake(resnet18(10, width=8)).double()
    x = torch.randn(2, 3, 32, 32, dtype=torch.double)
    torch.testing.assert_close(model(x), reference.resnet18(model.state_dict(), x))


def test_bottlenecks_equal_the_reference() -> None:
    torch.manual_seed(0)
    model = reference.shake(resnet18(10, width=4, depth=26, stem_pool=True)).double()
    x = torch.randn(2, 3, 32, 32, dtype=torch.double)
    torch.testing.assert_close(model(x), reference.resnet26(model.state_dict(), x))


@pytest.mark.parametrize(("channels", "size"), [(3, 32), (3, 64), (1, 8), (3, 33)])
def test_takes_images_of_many_sizes(channels: int, size: int) -> None:
    model = resnet18(10, width=4, channels=channels)
    assert model(torch.randn(2, channels, size, size)).shape == (2, 10)


def test_starts_from_he_values() -> None:
    torch.manual_seed(0)
    weight = resnet18().get_parameter("layer4.1.conv2.weight")
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"depth": 20}, "no depth 20: give one of 10, 18, 26, 34"),
        ({"width": 0}, "width must be a whole number of at least 1, not 0"),
        ({"num_classes": 1.5}, "num_classes must be a whole number of at least 1, not 1.5"),
        ({"channels": True}, "channels must be"),
    ],
)
def test_refuses_what_it_cannot_build(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelNameError, match=words):
        resnet18(**arguments)
