"""Sparse training keeps a tenth of the weights, and what sites weigh by it, worked by hand."""

import copy
from itertools import pairwise
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from deepshare import zoo
from deepshare.errors import BudgetError
from deepshare.methods.senet import SENet
from deepshare.methods.senet_pruning import (
    DENSITY,
    Sparse,
    check_layers,
    density,
    layer_weights,
    prune,
    relu_sensitivities,
)
from deepshare.sharing.planning import plan
from deepshare.sharing.sites import find_sites
from deepshare.training.build import lay_out
from deepshare.training.recipe.allocation import find


class Two(nn.Module):
    """Two layers of ten and thirty weights, and a site behind each."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 5, bias=False), nn.Linear(5, 6, bias=False)
        self.act1, self.act2 = nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act2(self.two(self.act1(self.one(x))))


def set_weights(model: nn.Module, **layers: Tensor) -> None:
    for name, weight in layers.items():
        model.get_parameter(f"{name}.weight").data.copy_(weight)


def test_the_largest_tenth_of_all_weights_stays_whatever_its_sign_and_layer() -> None:
    model = Two()
    one, two = torch.full((5, 2), 0.1), torch.full((6, 5), 0.2)
    one[3, 1], two[0, 0], two[5, 4], two[2, 2] = -9.0, 3.0, -2.0, 1.0
    set_weights(model, one=one, two=two)
    prune(model)
    expected = torch.zeros(6, 5)
    expected[0, 0], expected[5, 4], expected[2, 2] = 3.0, -2.0, 1.0
    assert model.two.weight.tolist() == expected.tolist()
    assert model.one.weight.count_nonzero() == 1
    assert model.one.weight[3, 1] == -9


def test_ties_are_broken_and_tied_weights_count_once() -> None:
    one, two = nn.Linear(10, 10), nn.Linear(10, 10)
    two.weight = one.weight
    nn.init.ones_(one.weight)
    model = nn.Sequential(one, nn.ReLU(), two)
    prune(model)
    assert one.weight.count_nonzero() == 10
    assert density(list(layer_weights(model).values())) == DENSITY


def test_biases_and_normalisation_stay_and_masks_can_be_taken_in_any_layout() -> None:
    model = lay_out(zoo.resnet18(10, width=8, depth=10), torch.channels_last)
    before = copy.deepcopy(model)
    prune(model)
    layers = {f"{name}.weight" for name in layer_weights(model)}
    for name, value in model.named_parameters():
        old = before.get_parameter(name)
        assert torch.equal(value, torch.where(value == 0, 0, old) if name in layers else old)


def trained(model: nn.Module, kind: Literal["sgd", "adam"], steps: int, lr: float) -> list[Tensor]:
    """Which weights are left after each step."""
    method = Sparse()
    optimiser = method.optimiser(model, lr=lr, momentum=0.9, weight_decay=0.0, kind=kind)
    generator = torch.Generator().manual_seed(0)
    seen = []
    for _ in range(steps):
        images = torch.randn(16, 3, 8, 8, generator=generator)
        nn.functional.cross_entropy(model(images), torch.arange(16) % 10).backward()
        optimiser.step()
        optimiser.zero_grad()
        assert method.measures(model)["density"] == pytest.approx(DENSITY, abs=1e-3)
        seen.append(torch.cat([weight.flatten() != 0 for weight in layer_weights(model).values()]))
    return seen


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_tenth_is_left_after_every_step_and_what_was_cut_comes_back(kind: Literal["sgd", "adam"]) -> None:
    torch.manual_seed(0)
    model = zoo.resnet18(10, width=4, depth=10)
    seen = trained(model, kind, 12, 0.05)
    total = len(seen[0])
    assert [int(left.sum()) for left in seen] == [int(DENSITY * total)] * 12
    assert all(bool((later & ~earlier).any()) for earlier, later in pairwise(seen))
    # Weights that were left, then cut, and are left at the end.
    assert any(bool((earlier & ~later & seen[-1]).any()) for earlier, later in pairwise(seen))


def test_a_weight_that_was_cut_goes_on_learning_also_after_a_resume() -> None:
    model, again = nn.Linear(10, 1, bias=False), nn.Linear(10, 1, bias=False)
    model.weight.data.copy_(torch.tensor([1.0, *[0.5] * 9]))
    optimiser = Sparse().optimiser(model, lr=1.0, momentum=0.5, weight_decay=0.0)
    # The last weight is 0.5 + 0.3, then 0.8 + 0.45, which is more than the first, and then 1.25 - 0.775.
    for gradient, place, value in ((-0.3, 0, 1.0), (-0.3, 9, 1.25), (1.0, 0, 1.0)):
        model.weight.grad = torch.tensor([[*[0.0] * 9, gradient]])
        optimiser.step()
        assert model.weight.nonzero().tolist() == [[0, place]]
        assert model.weight[0, place].item() == pytest.approx(value)
        again.load_state_dict(model.state_dict())
        resumed = Sparse().optimiser(again, lr=1.0, momentum=0.5, weight_decay=0.0)
        resumed.load_state_dict(copy.deepcopy(optimiser.state_dict()))
        model, optimiser, again = again, resumed, nn.Linear(10, 1, bias=False)


def test_sites_weigh_what_the_layers_before_them_lost() -> None:
    model = Two()
    one, two = torch.zeros(5, 2), torch.zeros(6, 5)
    one[:2] = two[0, :3] = 1.0
    set_weights(model, one=one, two=two)
    sites = find_sites(model, (2,))
    assert relu_sensitivities(model, sites) == {"act1": pytest.approx(1 - 4 / 10), "act2": pytest.approx(1 - 3 / 30)}


def test_several_layers_before_a_site_are_taken_together_and_none_is_all() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 8)
            self.first, self.act = nn.ReLU(), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.head(self.act(self.left(x) + self.right(x)))

    model = Sum()
    set_weights(model, left=torch.zeros(4, 4), right=torch.eye(4), head=torch.zeros(8, 4))
    found = relu_sensitivities(model, find_sites(model, (4,)))
    assert found == {"first": pytest.approx(1 - 4 / 64), "act": pytest.approx(1 - 4 / 32)}


def test_a_network_without_layers_before_its_sites_is_refused() -> None:
    with pytest.raises(BudgetError, match=r"no ReLU comes after a convolution .*: allocate by uniform") as caught:
        check_layers(find_sites(nn.Sequential(nn.ReLU(), nn.Linear(4, 4)), (4,)))
    assert "\n" not in str(caught.value)


ETAS = {"act1": 0.25, "act2": 0.75, "act3": 1.0}


def three() -> nn.Module:
    model = nn.Sequential()
    for name, channels in (("act1", 100), ("act2", 60), ("act3", 20)):
        model.add_module(f"to_{name}", nn.LazyLinear(channels))
        model.add_module(name, nn.ReLU())
    model(torch.zeros(1, 4))
    return model


@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        (20, [3, 7, 10]),  # 2.5, 7.5 and 10: the half goes where it is more of the share
        (40, [5, 15, 20]),  # the last is just full
        (60, [10, 30, 20]),  # 7.5, 22.5 and 30 would be; ten too many are divided as 1 to 3
        (100, [20, 60, 20]),  # 12.5, 37.5 and 50, then 20 and 60: two are full
        (121, [41, 60, 20]),  # whatever is left
        (180, [100, 60, 20]),  # all of it
    ],
)
def test_budgets_are_proportional_fill_up_and_are_spent_to_the_last_gate(gates: int, expected: list[int]) -> None:
    sites = find_sites(three(), (4,))
    counts = SENet((4,), gates, weights=ETAS).counts(sites)
    assert list(counts.values()) == expected
    assert sum(expected) == gates


@pytest.mark.parametrize("gates", [3, 7, 33, 59, 120, 179])
def test_a_plan_by_the_same_weights_stays_within_its_budget(gates: int) -> None:
    made = plan(three(), (4,), gates, ETAS)
    assert made.gates == gates
    assert all(group.gates <= group.leader.neurons for group in made.groups)


@pytest.mark.parametrize("name", ["resnet18", "wrn22-8"])
def test_the_counts_that_senet_published_are_proportional_to_eta_alpha(name: str) -> None:
    # If counts are s eta_alpha, s is at least the largest of them, and so each eta_theta at least 1 - count / largest.
    # The weights that are left must then be no more than a tenth of all. With s eta_alpha x ReLUs they would be more.
    with torch.device("meta"):
        model = zoo.build(name)
    sites = find_sites(model, (3, 32, 32))
    counts = dict(find("senet").read(sites) or {})
    sizes = {layer: weight.numel() for layer, weight in layer_weights(model).items()}

    def least(values: dict[str, float]) -> float:
        left = {place.layers[0]: 1 - values[place.site.name] / max(values.values()) for place in sites.places}
        return sum(sizes[layer] * share for layer, share in left.items()) / sum(sizes.values())

    assert 0.07 < least(counts) < DENSITY
    assert least({site.name: counts[site.name] / site.neurons for site in sites}) > 1.6 * DENSITY
