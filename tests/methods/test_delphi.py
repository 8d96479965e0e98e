"""DELPHI: the layers that are kept, and the blend that becomes a quadratic."""

import pytest
import torch
from torch import nn

from deepshare.errors import BudgetError
from deepshare.methods.delphi import BlendedReLU, Delphi, keep_last
from deepshare.methods.gated_polynomial import GatedPolynomial
from deepshare.sharing.convert import count_gates
from tests.methods.whole_layers import no_images, sites_of


def test_delphi_keeps_the_last_layers_that_fit() -> None:
    kept = keep_last(sites_of("resnet18"), 49_900)
    assert kept == {"layer3.1.act2", *(f"layer4.{block}.act{act}" for block in (0, 1) for act in (1, 2))}
    with pytest.raises(BudgetError, match="give at least 8,192"):
        keep_last(sites_of("resnet18"), 6000)
    assert keep_last(sites_of("resnet18"), 0) == set()


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
