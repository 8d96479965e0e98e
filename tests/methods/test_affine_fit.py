"""Start values of alpha and beta by least squares."""

import pytest
import torch
from torch import Tensor, nn

from deepshare import plan, share, zoo
from deepshare.methods.affine_fit import fit, is_untrained, moments, solve
from deepshare.methods.deepshare import DeepShare
from deepshare.sharing.gates import set_progress

SIZE = (3, 8, 8)


def one_channel(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).view(-1, 1)


def test_by_hand() -> None:
    # x^2 is 1, 4 and 4, ReLU is open, shut and open, the gate open, open and shut. Where the gate is shut beta does it
    # alone, 1; where it is open alpha + 1 is the mean of 1 and 0 with the weights 1 and 4, 0.2.
    alpha, beta = solve(moments(one_channel(1, -2, 2), one_channel(1, 1, 0)))
    assert (alpha.item(), beta.item()) == pytest.approx((-0.8, 1.0))


def test_they_are_the_least_squares() -> None:
    torch.manual_seed(0)
    x, gate = torch.randn(500, 3, dtype=torch.float64), torch.rand(500, 3, dtype=torch.float64)
    alpha, beta = solve(moments(x, gate))
    for c in range(3):
        system = torch.stack([x[:, c] * gate[:, c], x[:, c]], 1)
        found = torch.linalg.lstsq(system, x[:, c : c + 1].relu()).solution.flatten()
        assert (alpha[c].item(), beta[c].item()) == pytest.approx(tuple(found.tolist()))


def test_a_gate_that_never_changes_and_a_channel_without_values() -> None:
    alpha, beta = solve(moments(one_channel(1, -2, 2), one_channel(1, 1, 1)))
    assert (alpha.item(), beta.item()) == pytest.approx((0.0, 5 / 9))
    alpha, beta = solve(moments(one_channel(0, 0), one_channel(1, 0)))
    assert (alpha.item(), beta.item()) == (0.0, 0.0)


def resnet() -> nn.Module:
    torch.manual_seed(1)
    return zoo.resnet18(width=4, num_classes=10).eval()


def distance(shared: nn.Module, model: nn.Module) -> float:
    images = torch.randn(32, *SIZE, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        return float((shared(images) - model(images)).square().mean())


def test_a_network_that_keeps_all_its_gates_stays_what_it_is() -> None:
    model = resnet()
    shared = share(model, plan(model, SIZE, "100%", layer_sharing=False))
    images = torch.randn(40, *SIZE)
    fit(shared, images)
    with torch.no_grad():
        difference = (shared(images) - model(images)).abs().max()
    assert difference < 0.01 * model(images).abs().max()  # gates that hardly ever shut are taken as open


class Flat(nn.Module):
    """A map of one position, and then none: both sites are one group."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first = nn.Conv2d(3, 6, 8), nn.ReLU()
        self.linear, self.second = nn.Linear(6, 6), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.linear(self.first(self.conv(x)).flatten(1)))


def test_gates_go_from_a_map_to_a_vector() -> None:
    torch.manual_seed(2)
    model = Flat().eval()
    planned = plan(model, SIZE, 2)
    assert [len(group.sites) for group in planned.groups] == [2]
    shared = share(model, planned)
    before = distance(shared, model)
    fit(shared, torch.randn(200, *SIZE))
    assert distance(shared, model) < before


@pytest.mark.parametrize("progress", [0.0, 1.0])
def test_a_fitted_network_is_nearer_to_the_plain_one(progress: float) -> None:
    model = resnet()
    shared = share(model, plan(model, SIZE, "10%"))
    set_progress(shared, progress)
    before = distance(shared, model)
    assert is_untrained(shared)
    shared.train()
    fit(shared, torch.randn(64, *SIZE))
    assert shared.training
    assert not is_untrained(shared)
    assert distance(shared.eval(), model) < 0.8 * before


def test_they_are_fitted_once_at_the_start_and_kept_by_later_phases() -> None:
    model = resnet()
    method = DeepShare(plan(model, SIZE, "10%"), start="fitted")
    shared = method.convert(model)
    method.on_phase_start(shared, "gelu", lambda count: torch.randn(min(count, 64), *SIZE))
    fitted = {name: value.clone() for name, value in shared.named_parameters()}
    method.on_phase_start(shared, "switch", lambda count: pytest.fail("fitted again"))
    assert all(torch.equal(value, fitted[name]) for name, value in shared.named_parameters())
