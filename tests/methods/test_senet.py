"""SENet's budgets, its top-k of differences and its distance of attention maps, worked by hand."""

import copy

import pytest
import torch
from torch import Tensor, nn

from deepshare import zoo
from deepshare.errors import BudgetError
from deepshare.methods.senet import SENet, WatchedReLU, attention_distance, largest
from deepshare.sharing.convert import count_gates
from deepshare.sharing.sites import find_sites

SIZE = (1, 1, 4)


class Scale(nn.Module):
    """Multiplies by one number and activates, twice."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor, self.act, self.last = nn.Parameter(torch.tensor(factor)), nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(x * self.factor) * 2)


def watched(model: nn.Module) -> list[WatchedReLU]:
    return [module for module in model.modules() if isinstance(module, WatchedReLU)]


def test_the_largest_scores_get_the_gates() -> None:
    scores = torch.tensor([[0.5, 3.0, -1.0], [2.0, 0.0, 2.5]])
    assert largest(scores, 3).int().tolist() == [[0, 1, 0], [1, 0, 1]]


def test_a_site_gives_its_gates_to_the_neurons_that_differ_most_from_the_teacher() -> None:
    method = SENet(SIZE, gates=3, weights={"act": 2.0, "last": 1.0})
    teacher = Scale()
    model = method.convert(teacher)
    first, last = watched(model)
    first.set_mask(torch.tensor([True, True, False, False]).view(1, 1, 4))
    last.set_mask(torch.tensor([True, False, False, False]).view(1, 1, 4))
    watching = method.wrap_teacher(model, copy.deepcopy(teacher), "search")
    method.on_epoch_start(model, "search", 0, 1)
    model.train()
    for row in ([-1.0, -9.0, -2.0, -3.0], [1.0, -9.0, -2.0, -2.0]):
        images = torch.tensor(row).view(1, 1, 1, 4)
        model(images)
        watching(images)
    # Without a gate a negative input passes: the differences are those of neurons 2 and 3 here, doubled in the last.
    assert first.difference.flatten().tolist() == [0, 0, 4, 5]
    assert last.difference.flatten().tolist() == [0, 0, 8, 10]
    method.on_epoch_end(model, "search", 0)
    assert first.mask.flatten().int().tolist() == [0, 0, 1, 1]
    assert last.mask.flatten().int().tolist() == [0, 0, 0, 1]
    assert method.moved == 1.0
    method.on_epoch_start(model, "search", 1, 2)
    assert first.difference.sum() == 0
    assert not method.on_epoch_end(model, "finetune", 0)
    assert first.mask.flatten().int().tolist() == [0, 0, 1, 1]


def test_differences_count_in_either_direction() -> None:
    method = SENet(SIZE, gates=2)
    model, teacher = method.convert(Scale(2.0)), Scale()
    watching = method.wrap_teacher(model, teacher, "search")
    first = watched(model)[0]
    first.set_mask(torch.zeros(1, 1, 4, dtype=torch.bool))
    images = torch.tensor([4.0, -4.0, 0.0, 8.0]).view(1, 1, 1, 4)
    model.train()(images)
    watching(images)
    # The network gives twice the input and the teacher its ReLU: 4 above, 8 below, none, 8 above.
    assert first.difference.flatten().tolist() == [4, 8, 0, 8]
    images = torch.tensor([-4.0, 4.0, 0.0, 0.0]).view(1, 1, 1, 4)
    model(images)
    watching(images)
    assert first.difference.flatten().tolist() == [12, 12, 0, 8]


def test_attention_maps_are_compared_by_direction() -> None:
    # Maps of mean squares over two channels: (5, 0) and (0, 2), at right angles; (5, 0) and (10, 0), alike
    one = torch.tensor([[1.0, 0.0], [3.0, 0.0]]).view(1, 2, 1, 2)
    two = torch.tensor([[0.0, 2.0], [0.0, 0.0]]).view(1, 2, 1, 2)
    assert attention_distance(one, two).item() == pytest.approx(1.0)  # (1 + 1) / 2 positions
    assert attention_distance(one, 1.5 * one).item() == pytest.approx(0.0)
    # Behind a linear layer there is one position, and so one direction.
    assert attention_distance(torch.ones(2, 3), torch.tensor([[0.0, 1.0, 5.0]] * 2)).item() == pytest.approx(0.0)


def test_the_penalty_of_finetune_is_the_distance_at_the_end_of_every_stage() -> None:
    method = SENet(SIZE, gates=2, attention=3.0)
    teacher = Scale()
    model = method.convert(teacher)
    watching = method.wrap_teacher(model, copy.deepcopy(teacher), "finetune")
    images = torch.tensor([-1.0, 2.0, -3.0, 4.0]).view(1, 1, 1, 4)
    model.train()(images)
    watching(images)
    method.on_epoch_start(model, "search", 0, 1)
    assert method.penalty(model) is None
    method.on_epoch_start(model, "finetune", 0, 1)
    last = watched(model)[-1]  # both sites have the same shape: one stage
    assert last.output is not None
    assert last.target is not None
    penalty = method.penalty(model)
    assert penalty is not None
    torch.testing.assert_close(penalty, 3 * attention_distance(last.output, last.target))
    penalty.backward()
    assert model.get_parameter("factor").grad is not None


def test_budgets_of_sites_are_exact_and_none_is_above_its_neurons() -> None:
    sites = find_sites(zoo.resnet18(10, width=2, depth=10), (3, 8, 8))
    weights = {site.name: 100.0 if site.name == "layer4.0.act2" else 1.0 for site in sites}
    counts = SENet((3, 8, 8), gates=101, weights=weights).counts(sites)
    assert sum(counts.values()) == 101
    assert counts["layer4.0.act2"] == 16
    with pytest.raises(BudgetError, match="below the minimum of 8 gates"):
        SENet((3, 8, 8), gates=7).counts(sites)
    with pytest.raises(BudgetError, match=r"no weight for layer1\.0\.act1, .*; no site is named stem"):
        SENet((3, 8, 8), gates=101, weights={"stem": 1.0}).counts(sites)


def test_a_converted_network_has_its_gates_and_can_be_copied_after_a_step() -> None:
    method = SENet((3, 8, 8), gates=50, seed=3)
    model = method.convert(zoo.resnet18(10, width=2, depth=10))
    model.train()(torch.randn(2, 3, 8, 8)).sum().backward()
    assert count_gates(copy.deepcopy(model), (3, 8, 8)) == method.measures(model)["gates"] == 50
