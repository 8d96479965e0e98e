"""Teachers and plain networks: trained, or taken from a finished run."""

from pathlib import Path

import pytest
from torch import nn

from deepshare.errors import CheckpointError, RecipeError
from deepshare.training.api import fit
from deepshare.training.build import load
from deepshare.training.recipe.files import load_recipe
from tests.training.small_runs import Finished, Notes, Small, same


def test_a_finished_teacher_is_taken(finished: Finished, small: Small, tmp_path: Path) -> None:
    told = Notes()
    recipe = small(teacher__weights=str(finished[0] / "teacher"))
    assert same(finished[1], fit(recipe=recipe, out=tmp_path / "run", reporter=told))
    assert not (tmp_path / "run" / "teacher").exists()
    assert [name for name, _, _ in told.phases] == ["gelu", "switch", "finetune"]


def test_a_teacher_of_another_kind_is_refused(finished: Finished, small: Small, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a shared network where a gelu one is due"):
        fit(recipe=small(teacher__weights=str(finished[0])), out=tmp_path / "run")
    with pytest.raises(CheckpointError, match="cannot be read"):
        fit(recipe=small(teacher__weights=str(tmp_path / "none")), out=tmp_path / "run")
    teacher = str(finished[0] / "teacher")
    with pytest.raises(CheckpointError, match="weights of another network"):
        fit(recipe=small(teacher__weights=teacher, model__arguments__width=16), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_plain_network_as_the_start(small: Small, tmp_path: Path) -> None:
    told = Notes()
    recipe = small(method__initial="plain", method__start="identity")
    fit(recipe=recipe, out=tmp_path / "run", reporter=told)
    assert [name for name, _, _ in told.phases] == ["teacher", "plain", "gelu", "switch", "finetune"]
    assert isinstance(load(tmp_path / "run" / "plain"), nn.Module)


def test_a_plain_network_that_is_given_leaves_nothing_to_train() -> None:
    with pytest.raises(RecipeError, match=r'method "relu" trains the plain network: give model\.weights'):
        load_recipe("digits-plain", {"plain.weights": "runs/x"})
