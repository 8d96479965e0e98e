"""DeepReDuce: culled and thinned stages, with the published counts."""

import pytest
from torch import nn

from deepshare import zoo
from deepshare.errors import BudgetError, UnsupportedModelError
from deepshare.methods.deepreduce import DeepReDuce
from deepshare.methods.hybrenet import HybReNet
from deepshare.sharing.convert import count_gates
from deepshare.sharing.sites import find_sites
from tests.methods.whole_layers import SIZE, gates, sites_of


def test_half_of_resnet18_has_the_published_49152() -> None:
    kept = DeepReDuce(SIZE, 49_152).choose(sites_of("resnet18", width=32))
    assert [site.name for site in kept] == ["layer3.0.act2", "layer3.1.act2", "layer2.0.act2", "layer2.1.act2"]
    assert gates(kept) == 2 * 64 * 16**2 + 2 * 128 * 8**2 == 49_152


@pytest.mark.parametrize(
    ("arguments", "budget", "published"),
    [
        ({}, 114_700, 114_688),
        ({}, 197_000, 196_608),
        ({}, 230_000, 229_376),
        ({"width": 32}, 57_350, 57_344),
        ({"width": 32, "stem_stride": 2}, 14_340, 14_336),
        ({"width": 32, "stem_stride": 2}, 12_290, 12_288),
        ({"stem_stride": 2}, 28_680, 28_672),
        ({"width": 16, "stem_stride": 2}, 7_170, 7_168),
        ({}, 491_520, 491_520),
    ],
)
def test_other_published_counts(arguments: dict[str, int], budget: int, published: int) -> None:
    assert gates(DeepReDuce(SIZE, budget).choose(sites_of("resnet18", **arguments))) == published


def test_a_dropped_relu_is_the_identity() -> None:
    model = DeepReDuce((3, 8, 8), 128).convert(zoo.resnet18(10, width=4))
    assert count_gates(model, (3, 8, 8)) == 128
    assert isinstance(model.get_submodule("layer3.0.act2"), nn.ReLU)
    assert isinstance(model.get_submodule("layer3.0.act1"), nn.Identity)
    assert model.state_dict().keys() == zoo.resnet18(10, width=4).state_dict().keys()


def test_a_budget_or_network_that_it_cannot_do() -> None:
    with pytest.raises(BudgetError, match="has 32,768 gates or more and the budget is 6,000"):
        DeepReDuce(SIZE, 6000).choose(sites_of("resnet18"))
    with pytest.raises(UnsupportedModelError, match="of four which are critical"):
        DeepReDuce(SIZE, 6000).choose(find_sites(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), SIZE))
    for method in (DeepReDuce, HybReNet):  # four shapes, and yet three stages
        with pytest.raises(UnsupportedModelError, match="1, 6, 6, 5 ReLUs of equal shape"):
            method(SIZE, 240_000).choose(sites_of("wrn22-8"))
