from typing import Any

import pytest
import torch
from torch import nn

from deepshare.errors import ModelNameError
from deepshare.sharing.sites import find_sites
from deepshare.zoo import wide_resnet
from tests.zoo import reference


def test_sites_are_those_of_the_description() -> None:
    with torch.device("meta"):
        sites = find_sites(wide_resnet(), (3, 32, 32))
    shapes = [(16, 32, 32)] + 6 * [(128, 32, 32)] + 6 * [(256, 16, 16)] + 5 * [(512, 8, 8)]
    names = [f"block{stage}.{block}.act{act}" for stage in (1, 2, 3) for block in (0, 1, 2) for act in (1, 2)]
    assert [(site.name, site.shape) for site in sites] == list(zip(names, shapes, strict=True))
    assert sites.neurons == 1_359_872


def test_parameter_count() -> None:
    with torch.device("meta"):
        model = wide_resnet()
    total, inputs = 3 * 16 * 9, 16
    for width in (128, 256, 512):
        total += 2 * inputs + inputs * width * 9 + 2 * width + width * width * 9 + inputs * width
        total += 2 * (2 * (2 * width + width * width * 9))
        inputs = width
    assert total + 2 * 512 + 512 * 100 + 100 == 17_204_276
    assert sum(parameter.numel() for parameter in model.parameters()) == 17_204_276


@pytest.mark.parametrize("depth", [10, 16])
def test_equals_the_reference(depth: int) -> None:
    torch.manual_seed(0)
    model = reference.shake(wide_resnet(depth, widen=2, num_classes=7)).double()
    x = torch.randn(2, 3, 16, 16, dtype=torch.double)
    torch.testing.assert_close(model(x), reference.wide_resnet(model.state_dict(), x, (depth - 4) // 6))


def test_activation_feeds_the_shortcut_only_where_the_width_changes() -> None:
    torch.manual_seed(0)
    model = reference.shake(wide_resnet(16, widen=2))
    x = torch.randn(1, 32, 8, 8)
    blocks: list[Any] = list(model.block2)
    for block in blocks:
        nn.init.zeros_(block.conv2.weight)
    changing, equal = blocks
    assert torch.equal(changing(x), changing.shortcut(changing.bn1(x).clamp(min=0)))
    assert not torch.allclose(changing(x), changing.shortcut(x))
    y = torch.randn(1, 64, 4, 4)
    assert torch.equal(equal(y), y)


@pytest.mark.parametrize("size", [32, 64])
def test_takes_both_image_sizes(size: int) -> None:
    assert wide_resnet(10, widen=1, num_classes=5)(torch.randn(2, 3, size, size)).shape == (2, 5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"depth": 20}, "no depth 20: give 10, 16, 22"),
        ({"depth": 4}, "no depth 4"),
        ({"widen": -1}, "widen must be a whole number of at least 1, not -1"),
    ],
)
def test_refuses_what_it_cannot_build(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelNameError, match=words):
        wide_resnet(**arguments)
