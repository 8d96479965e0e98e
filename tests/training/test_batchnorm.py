"""BatchNorm's statistics, estimated anew: what they are, and that training goes on as without."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from deepshare.data import Augment, batches
from deepshare.data import load as load_data
from deepshare.data.batching import seed_of
from deepshare.errors import RecipeError
from deepshare.training.api import fit
from deepshare.training.batchnorm import recalibrate
from deepshare.training.build import load
from deepshare.training.evaluate import measure
from deepshare.training.run.folder import RunFolder
from tests.training.small_runs import Small, StopAfter, StoppedError


def test_they_are_the_means_of_the_batches_with_the_weights_as_they_are() -> None:
    torch.manual_seed(0)
    first, second = nn.BatchNorm2d(4), nn.BatchNorm2d(3, momentum=0.3)
    convolutions = [nn.Conv2d(2, 4, 3), nn.Conv2d(4, 3, 3)]
    dropout = nn.Dropout(0.9)
    model = nn.Sequential(convolutions[0], first, nn.ReLU(), dropout, convolutions[1], second)
    fed = [torch.randn(size, 2, 8, 8) * scale for size, scale in ((8, 1.0), (8, 30.0), (5, 2.0))]
    for images in fed[:2]:
        model(images)
    dropout.eval()
    before = {key: value.clone() for key, value in model.named_parameters()}

    recalibrate(model, fed)

    maps = [convolutions[0](images) for images in fed]
    later = [
        convolutions[1](F.relu(F.batch_norm(x, None, None, first.weight, first.bias, training=True))) for x in maps
    ]
    for layer, inputs in ((first, maps), (second, later)):
        means, variances = ([getattr(x, what)((0, 2, 3)) for x in inputs] for what in ("mean", "var"))
        torch.testing.assert_close(layer.running_mean, torch.stack(means).mean(0))
        torch.testing.assert_close(layer.running_var, torch.stack(variances).mean(0))
    assert all(torch.equal(value, before[key]) for key, value in model.named_parameters())
    assert (first.momentum, second.momentum) == (0.1, 0.3)
    assert model.training and second.training and not dropout.training


def test_a_phase_ends_with_those_of_its_last_epoch_and_weights_as_without(small: Small, tmp_path: Path) -> None:
    fit(recipe=small(), out=tmp_path / "without")
    fit(recipe=small(finetune__recalibrate=2), out=tmp_path / "with")
    expected, found = load(tmp_path / "without"), load(tmp_path / "with")
    assert all(torch.equal(a, b) for a, b in zip(expected.parameters(), found.parameters(), strict=True))
    assert any(not torch.equal(value, found.state_dict()[key]) for key, value in expected.state_dict().items())

    data, seed = load_data("digits", validation=64, subset=128), seed_of(0, "shared", "finetune")
    feed = batches(data.train, 64, seed=seed, epoch=1, augment=Augment(crop_padding=1), shuffle=True)
    recalibrate(expected, (images for images, _ in feed))
    for key, value in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[key], value, msg=key)
    last = RunFolder(tmp_path / "with").lines()[-1]
    assert measure(found, data.validation, batch=64).accuracy == last["val_accuracy"]


def test_a_resumed_run_equals_an_uninterrupted_one(small: Small, tmp_path: Path) -> None:
    recipe = small(gelu__recalibrate=1, finetune__recalibrate=2)
    fit(recipe=recipe, out=tmp_path / "whole")
    for phase in ("gelu", "finetune"):
        with pytest.raises(StoppedError):
            fit(recipe=recipe, out=tmp_path / "cut", resume=True, reporter=StopAfter(phase, 1))
    fit(recipe=recipe, out=tmp_path / "cut", resume=True)
    for name in ("model.safetensors", "best.safetensors", "recipe.toml"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_a_network_without_them_is_refused_before_it_is_trained(small: Small, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    with pytest.raises(RecipeError, match=r"Sequential has no BatchNorm: take switch\.recalibrate away"):
        fit(model, recipe=small(switch__recalibrate=2, teacher__epochs=1), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
