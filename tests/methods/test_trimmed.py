"""The network without replicates: it computes what a narrower one would."""

from pathlib import Path

import torch
from torch import nn

from deepshare.methods.deepshare import DeepShare, trim
from deepshare.sharing.convert import count_gates, share
from deepshare.sharing.gates import set_progress, shared_relus
from deepshare.sharing.planning import plan
from deepshare.training.api import fit
from deepshare.training.build import load
from deepshare.training.recipe.files import load_recipe


def network(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 6, 3), nn.ReLU())


def test_a_trimmed_network_is_the_narrow_network() -> None:
    wide, narrow = network(8), network(3)
    with torch.no_grad():
        for name, value in narrow.named_parameters():
            value.copy_(wide.get_parameter(name)[tuple(slice(n) for n in value.shape)])
    gates = plan(wide, (3, 8, 8), 3 * 36 + 6 * 16, {"1": 3 * 36, "3": 6 * 16}, affine=False)
    assert [group.prototypes for group in gates.groups] == [3, 6]
    trimmed = DeepShare(gates, replicates=False).convert(wide)
    images = torch.randn(4, 3, 8, 8)
    torch.testing.assert_close(trimmed(images), narrow(images))
    assert count_gates(trimmed, (3, 8, 8)) == count_gates(narrow, (3, 8, 8)) == 204


def test_replicates_stay_silent_with_soft_gates() -> None:
    model = network(8)
    trimmed = share(model, plan(model, (3, 8, 8), "20%", affine=False))
    trim(trimmed)
    set_progress(trimmed, 0.0)
    convolution, activation, *_ = trimmed.children()
    hidden = activation(convolution(torch.randn(4, 3, 8, 8)))
    prototypes = next(shared_relus(trimmed)).prototypes
    assert hidden[:, :prototypes].abs().sum() > 0
    assert hidden[:, prototypes:].abs().sum() == 0


def test_a_trimmed_network_is_trained_and_read_back(tmp_path: Path) -> None:
    overrides = {"method.replicates": False, "method.affine": False, "budget.layer_sharing": False}
    short = {f"{phase}.epochs": 1 for phase in ("teacher", "gelu", "switch", "finetune")}
    small = {"data.subset": 128, "data.validation": 32, "model.arguments.width": 4, "budget.gates": "20%"}
    trained = fit(recipe=load_recipe("digits", {**overrides, **short, **small}), out=tmp_path / "run")
    images = torch.randn(4, 1, 8, 8)
    assert torch.equal(load(tmp_path / "run")(images), trained(images))
