"""Shipped densities as weights."""

from pathlib import Path

import pytest

from deepshare import plan, zoo
from deepshare.errors import BudgetError
from deepshare.sharing.sites import Sites, find_sites
from deepshare.training.recipe.allocation import find
from tests.training.allocation.shapes import sites_of

# Counts of SENet at 25,000 ReLUs, without the stem that this network's stem does not have.
COUNTS = [655, 655, 655, 721, 885, 1245, 1311, 1376, 1671, 2032, 2064, 2130, 2294, 2458, 2458, 2458]


def weights(allocate: str, sites: Sites) -> dict[str, float]:
    return dict(find(allocate).read(sites) or {})


def test_resnet18_gets_the_counts_of_senet() -> None:
    assert [round(weight) for weight in weights("senet", sites_of("resnet18", 32)).values()] == COUNTS


def test_wide_resnet_gets_the_count_of_senet_without_the_last_relu() -> None:
    total = sum(weights("senet", sites_of("wrn22-8", 32)).values())
    assert round(total + 0.57 * 512 * 8 * 8) == 239_436


@pytest.mark.parametrize(("size", "width", "factor"), [(64, 64, 4), (32, 16, 0.25), (64, 16, 1)])
def test_other_widths_and_sizes_keep_the_proportions(size: int, width: int, factor: float) -> None:
    usual = weights("senet", sites_of("resnet18", 32))
    assert weights("senet", sites_of("resnet18", size, width=width)) == pytest.approx(
        {name: weight * factor for name, weight in usual.items()}
    )


def test_how_far_snl_and_senet_are_apart_is_what_the_page_says() -> None:
    model = zoo.resnet18(num_classes=100, width=16)
    sites = find_sites(model, (3, 32, 32))
    page = Path("docs/method/training.md").read_text(encoding="utf-8")
    for gates in (1536, 2288, 12288):
        plans = [plan(model, (3, 32, 32), gates, weights=weights(name, sites)) for name in ("senet", "snl-densities")]
        divided = [", ".join(str(group.prototypes) for group in made.groups) for made in plans]
        pairs = zip(plans[0].groups, plans[1].groups, strict=True)
        moved = sum(abs(first.gates - second.gates) for first, second in pairs) // 2
        assert f"| {gates:,} | {divided[0]} | {divided[1]} | {moved:,} |" in page
    wide = zoo.resnet18(num_classes=100)
    full = plan(wide, (3, 32, 32), 6000, weights=weights("senet", find_sites(wide, (3, 32, 32))))
    assert [group.prototypes for group in full.groups] == [1, 4, 28, 135]


def test_a_network_without_densities_is_told_the_cure() -> None:
    with pytest.raises(BudgetError, match="allocate by pruning, which measures them, by uniform, by snl or by a file"):
        find("senet").read(sites_of("resnet18", 32, depth=10))


def test_densities_of_snl_that_are_not_shipped_are_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = sites_of("resnet18", 32, width=16)
    monkeypatch.setattr("deepshare.training.allocation.published.tomllib.loads", lambda text: {"senet": {}})
    with pytest.raises(BudgetError, match="SNL's densities are known for no network yet: "):
        weights("snl-densities", sites)
    table = {site.name: 0.5 for site in sites}
    shipped = {"snl": {"resnet18": table}}
    monkeypatch.setattr("deepshare.training.allocation.published.tomllib.loads", lambda text: shipped)
    assert weights("snl-densities", sites) == {site.name: site.neurons / 2 for site in sites}
