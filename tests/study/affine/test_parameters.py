"""The affine parameters of networks with shared gates."""

import json
from pathlib import Path

import pytest
import torch

import deepshare
from deepshare import zoo
from deepshare.errors import CheckpointError, UnsupportedModelError
from deepshare.sharing.convert import Overwrite
from deepshare.study.affine.parameters import NetworkAffine, linear_like, read, read_run

SIZE = (3, 16, 16)


def test_linear_like_is_where_both_factors_are_nearly_the_same() -> None:
    """Against the definition, channel by channel: the factors differ by at most a tenth of the larger."""
    alpha, beta = torch.randn(2, 5_000) * torch.tensor([[0.3], [1.0]])
    closed, opened = beta, alpha + beta
    larger = torch.stack([closed.abs(), opened.abs()]).amax(0)
    assert torch.equal(linear_like(alpha, beta), (opened - closed).abs() <= 0.1 * larger + 1e-12)
    assert 0.1 < linear_like(alpha, beta).double().mean() < 0.5


@pytest.mark.parametrize(
    ("alpha", "beta", "linear"),
    [(1, 0, False), (0, 1, True), (0, 0, True), (-1, 1, False), (0.1, -1, True), (0.11, -1, False), (0.11, 1, True)],
)
def test_known_channels(alpha: float, beta: float, linear: bool) -> None:
    assert linear_like(torch.tensor([alpha]), torch.tensor([beta])).item() == linear


def test_prototypes_are_the_first_channels_of_leaders_only(tiny_run: Path) -> None:
    plan = deepshare.Plan.load(tiny_run / "plan.json")
    found = read_run(tiny_run)
    assert found.gates == plan.gates
    expected = [
        (site.name, number, group.prototypes if site == group.leader else 0)
        for number, group in enumerate(plan.groups, 1)
        for site in group.sites
    ]
    assert [(site.site, site.group, site.prototypes) for site in found.sites] == expected
    weights = deepshare.load(tiny_run).state_dict()
    for site in found.sites:
        assert torch.equal(site.alpha, weights[f"{site.site}.alpha"])
        assert torch.equal(site.beta, weights[f"{site.site}.beta"])


def test_shares_are_those_of_all_channels_of_a_kind(network: NetworkAffine) -> None:
    entry = json.loads(json.dumps(network.to_dict()))
    prototypes = sum(site["prototypes"] for site in entry["sites"])
    channels = sum(site["channels"] for site in entry["sites"])
    linear = {kind: sum(site[f"linear_{kind}"] for site in entry["sites"]) for kind in ("prototypes", "replicates")}
    assert entry["linear_share"]["prototypes"] == pytest.approx(linear["prototypes"] / prototypes, abs=1e-6)
    replicates = channels - prototypes
    assert entry["linear_share"]["replicates"] == pytest.approx(linear["replicates"] / replicates, abs=1e-6)
    assert linear["replicates"] > 0
    assert "linear-like" in str(network)


def test_without_replicates_their_share_is_unknown() -> None:
    plain = zoo.resnet18(num_classes=5, width=4, depth=10)
    plan = deepshare.plan(plain, SIZE, "100%", layer_sharing=False)
    entry = read(deepshare.share(plain, plan)).to_dict()
    assert entry["linear_share"] == {"prototypes": 0.0, "replicates": None}


def test_what_has_no_affine_parameters_is_refused(tiny_run: Path) -> None:
    plain = zoo.resnet18(num_classes=5, width=4, depth=10)
    with pytest.raises(UnsupportedModelError, match="no shared gates"):
        read(plain)
    with pytest.raises(UnsupportedModelError, match="without an affine map"):
        read(deepshare.share(plain, deepshare.plan(plain, SIZE, "20%", affine=False)))
    with pytest.raises(CheckpointError, match="give a run of the method deepshare"):
        read_run(tiny_run / "teacher")


def test_a_site_that_overwrites_its_input_keeps_its_name() -> None:
    class Reads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.act = torch.nn.Conv2d(3, 4, 1), torch.nn.ReLU(inplace=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layer(x)
            return self.act(x) + x

    shared = deepshare.share(Reads(), deepshare.plan(Reads(), SIZE, "50%"))
    assert isinstance(shared.act, Overwrite)
    assert [site.site for site in read(shared).sites] == ["act"]
