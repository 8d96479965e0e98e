"""DeepShare's phases: which gates there are in which epoch."""

from typing import Literal

import pytest
import torch
from torch import nn

from deepshare.methods.deepshare import DeepShare
from deepshare.sharing.gates import SharedReLU, hard_share, set_progress
from deepshare.sharing.planning import plan


def method(switch_by: Literal["channels", "sharpness"], sharpness: float = 1.0) -> tuple[DeepShare, nn.Module]:
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU())
    made = DeepShare(plan(model, (1, 2, 2), 8), "identity", sharpness, switch_by=switch_by)
    return made, made.convert(model)


def test_channels_become_hard_one_after_the_other() -> None:
    made, network = method("channels")
    seen = []
    for phase, epoch in [("gelu", 3), *(("switch", epoch) for epoch in range(4)), ("finetune", 0)]:
        made.on_epoch_start(network, phase, epoch, 4)
        seen.append(made.measures(network))
    assert seen == [{"hard_share": share} for share in (0.0, 0.25, 0.5, 0.75, 1.0, 1.0)]


def test_or_all_become_sharper_and_in_the_last_epoch_hard() -> None:
    made, network = method("sharpness", 1.5)
    site = network.get_submodule("1")
    assert isinstance(site, SharedReLU)
    x = torch.tensor([0.5, -2.0, 1.0, 1.0]).view(1, 4, 1, 1)
    for epoch, sharpness in enumerate((2.0, 3.0, 6.0)):  # a width of 3/4, 1/2 and 1/4 of what 1.5 has
        made.on_epoch_start(network, "switch", epoch, 4)
        assert made.measures(network) == {"hard_share": 0, "sharpness": pytest.approx(sharpness)}
        gates = torch.distributions.Normal(0, 1).cdf(sharpness * torch.tensor([0.5, -2.0]))
        torch.testing.assert_close(site(x).flatten(), x.flatten() * gates.repeat(2))
    made.on_epoch_start(network, "switch", 3, 4)
    assert made.measures(network) == {"hard_share": 1}
    assert site(x).flatten().tolist() == [0.5, 0.0, 1.0, 0.0]
    assert site(torch.zeros(1, 4, 1, 1)).flatten().tolist() == [0.0] * 4  # and not half of something at zero


def test_the_teacher_of_the_switch_is_as_soft_as_the_gelu_phase_was() -> None:
    made, network = method("sharpness", 1.5)
    x = torch.randn(2, 1, 2, 2)
    made.on_epoch_start(network, "gelu", 0, 1)
    soft = network(x)
    made.on_epoch_start(network, "switch", 2, 4)
    assert not torch.equal(network(x), soft)
    made.on_epoch_start(network, "gelu", 0, 1)
    assert torch.equal(network(x), soft)
    made.on_epoch_start(network, "finetune", 0, 3)
    hard = network(x)
    set_progress(network, 1.0)
    assert torch.equal(network(x), hard)
    assert hard_share(network) == 1
