"""Weights that a network starts from."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from deepshare import zoo
from deepshare.errors import CheckpointError
from deepshare.training.api import fit
from deepshare.training.pretrained import start_from
from tests.training.small_runs import Finished, Small


def test_start_weights_with_another_number_of_classes(small: Small, tmp_path: Path) -> None:
    other = zoo.resnet18(7, width=8, depth=10, channels=1)
    save_file(other.state_dict(), tmp_path / "start.safetensors")
    torch.save(other.state_dict(), tmp_path / "start.pt")
    for name in ("start.safetensors", "start.pt"):
        fit(recipe=small(model__weights=str(tmp_path / name)), out=tmp_path / "run", dry_run=True)
    save_file(nn.Linear(2, 2).state_dict(), tmp_path / "wrong.safetensors")
    with pytest.raises(CheckpointError, match="holds the weights of another network"):
        fit(recipe=small(model__weights=str(tmp_path / "wrong.safetensors")), out=tmp_path / "run")


def test_start_weights_as_training_scripts_save_them(small: Small, tmp_path: Path) -> None:
    weights = zoo.resnet18(10, width=8, depth=10, channels=1).state_dict()
    parallel = {f"module.{key}": value for key, value in weights.items()}
    for content in ({"epoch": 3, "state_dict": parallel}, {"model": weights}, parallel):
        torch.save(content, tmp_path / "start.pt")
        assert start_from(zoo.resnet18(10, width=8, depth=10, channels=1), tmp_path / "start.pt", 10) == []
    weights["conv1.weight"][0] = torch.nan
    torch.save(weights, tmp_path / "start.pt")
    with pytest.raises(CheckpointError, match=r"its conv1\.weight holds numbers that are not finite"):
        fit(recipe=small(model__weights=str(tmp_path / "start.pt")), out=tmp_path / "run", dry_run=True)


def test_start_weights_of_a_shared_run_are_refused_with_the_cure(
    finished: Finished, small: Small, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="is the run of a shared network, and a plain one is wanted: give a pl"):
        fit(recipe=small(model__weights=str(finished[0])), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [nn.Linear(2, 2), {"epoch": 3, "model": {}}, b"no weights at all", b"eh" * 9, b""])
def test_start_weights_that_are_none(content: object, small: Small, tmp_path: Path) -> None:
    file = tmp_path / "start.pt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    with pytest.raises(
        CheckpointError, match=r"start\.pt holds no state_dict.*torch\.save\(model\.state_dict\(\), FILE\)$"
    ):
        fit(recipe=small(model__weights=str(file)), out=tmp_path / "run")
