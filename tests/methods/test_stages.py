"""Methods that drop whole layers: DeepReDuce, HybReNet and DELPHI."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deepshare import methods, zoo
from deepshare.errors import BudgetError, RecipeError, UnsupportedModelError
from deepshare.methods.base import Method
from deepshare.methods.deepreduce import DeepReDuce
from deepshare.methods.delphi import BlendedReLU, Delphi, keep_last
from deepshare.methods.gated_polynomial import GatedPolynomial
from deepshare.methods.hybrenet import HybReNet
from deepshare.sharing.convert import count_gates
from deepshare.sharing.sites import Site, Sites, find_sites

SIZE = (3, 32, 32)


def sites_of(name: str, **arguments: Any) -> Sites:
    with torch.device("meta"):
        return find_sites(zoo.build(name, **arguments), SIZE)


def no_images(count: int) -> Tensor:
    raise ValueError("no image is looked at")


def gates(sites: list[Site]) -> int:
    return sum(site.neurons for site in sites)


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


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("hrn-5x5x3", [65_536, 81_920, 102_400, 76_800]),
        ("hrn-2x5x3", [131_072, 65_536, 81_920, 61_440]),
        ("hrn-7x5x2", [65_536, 114_688, 143_360, 71_680]),
    ],
)
def test_the_networks_of_hybrenet(name: str, stages: list[int]) -> None:
    sites = sites_of(name)
    assert [gates([s for s in sites if s.name.startswith(f"layer{n}")]) for n in (1, 2, 3, 4)] == stages


def test_hybrenet_thins_its_own_networks_only() -> None:
    assert gates(HybReNet(SIZE, 52_000).choose(sites_of("hrn-5x5x3"))) == 51_200
    assert gates(HybReNet(SIZE, 326_656).choose(sites_of("hrn-5x5x3"))) == 326_656
    with pytest.raises(UnsupportedModelError, match="64, 128, 256, 512 channels are those of a ResNet"):
        HybReNet(SIZE, 52_000).choose(sites_of("resnet18"))


def test_delphi_keeps_the_last_layers_that_fit() -> None:
    kept = keep_last(sites_of("resnet18"), 49_900)
    assert kept == {"layer3.1.act2", *(f"layer4.{block}.act{act}" for block in (0, 1) for act in (1, 2))}
    with pytest.raises(BudgetError, match="give at least 8,192"):
        keep_last(sites_of("resnet18"), 6000)


def test_delphi_blends_step_by_step_and_ends_with_the_quadratic() -> None:
    method = Delphi((1, 1, 2), gates=2)
    model = method.convert(nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.Conv2d(1, 1, 1), nn.ReLU()))
    blend = model.get_submodule("1")
    x = torch.tensor([-2.0, 8.0]).view(1, 1, 1, 2)
    assert isinstance(blend, BlendedReLU)
    assert blend(x).flatten().tolist() == [0.0, 6.0]
    quadratic = torch.tensor([0.1997 * 4 - 0.5002 * 2 + 0.1992, 0.1997 * 64 + 0.5002 * 8 + 0.1992])
    method.on_epoch_start(model, "search", 0, 4)
    assert method.measures(model) == {"ratio": 0.75}
    torch.testing.assert_close(blend(x).flatten(), 0.25 * quadratic + 0.75 * torch.tensor([0.0, 6.0]))
    method.on_epoch_start(model, "search", 3, 4)
    torch.testing.assert_close(blend(x).flatten(), quadratic)
    method.on_phase_start(model, "finetune", no_images)
    swapped = model.get_submodule("1")
    assert isinstance(swapped, GatedPolynomial)
    torch.testing.assert_close(swapped.eval()(x).flatten(), quadratic)
    assert count_gates(model, (1, 1, 2)) == 2


@pytest.mark.parametrize("name", methods.names())
def test_every_method_is_found_by_its_name(name: str) -> None:
    kind: Any = methods.get(name)
    assert issubclass(kind, Method)


def test_an_unknown_method_is_told_the_names() -> None:
    with pytest.raises(RecipeError, match='no method is called "sln": give one of autorep, deepreduce'):
        methods.get("sln")
