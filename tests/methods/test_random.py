"""Random gates: the draw, its counts and its seed."""

import pytest
import torch
from torch import nn

from deepshare.errors import BudgetError, RecipeError
from deepshare.methods.gated_polynomial import gated
from deepshare.methods.random import RandomGates, RandomSettings
from deepshare.sharing.convert import count_gates
from deepshare.training.recipe.files import load_recipe

SIZE = (1, 4, 4)


def network() -> nn.Sequential:
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 3))


def masks(method: RandomGates) -> list[torch.Tensor]:
    return [module.mask for _, module in gated(method.convert(network()))]


def test_sites_have_gates_in_proportion_to_their_neurons_or_to_weights() -> None:
    assert [int(mask.sum()) for mask in masks(RandomGates(SIZE, 48))] == [16, 32]
    assert [int(mask.sum()) for mask in masks(RandomGates(SIZE, 48, weights={"1": 3.0, "3": 1.0}))] == [36, 12]
    assert count_gates(RandomGates(SIZE, 48).convert(network()).eval(), SIZE) == 48


def test_the_seed_decides_the_places() -> None:
    first, again, other = (masks(RandomGates(SIZE, 48, seed=seed)) for seed in (1, 1, 2))
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other))


def test_channels_have_all_of_their_gates_or_none() -> None:
    for mask, channels in zip(masks(RandomGates(SIZE, 112, unit="channel")), (2, 4), strict=True):
        assert mask.flatten(1).sum(1).sort().values.tolist() == [0] * (len(mask) - channels) + [16] * channels
    with pytest.raises(BudgetError, match="random channels have 16 gates or more"):
        masks(RandomGates(SIZE, 16, unit="channel"))


def test_the_section_of_the_recipe() -> None:
    values = {"method.name": "random", "random.unit": "channel", "gelu": None, "switch": None}
    assert load_recipe("digits", values).section(RandomSettings).unit == "channel"
    with pytest.raises(RecipeError, match=r"unit: got \"row\", expected 'neuron' or 'channel'"):
        load_recipe("digits", {**values, "random.unit": "row"})
    with pytest.raises(RecipeError, match=r'method "snl" has no use for \[random\]'):
        load_recipe("digits", {**values, "method.name": "snl"})
    with pytest.raises(RecipeError, match=r'method "random" needs \[finetune\]'):
        load_recipe("digits", {**values, "finetune": None})
