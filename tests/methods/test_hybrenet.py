"""HybReNet: its networks, and what is thinned in them."""

import pytest

from deepshare.errors import UnsupportedModelError
from deepshare.methods.hybrenet import HybReNet
from tests.methods.whole_layers import SIZE, gates, sites_of


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
