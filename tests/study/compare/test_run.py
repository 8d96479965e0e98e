"""Single runs: teachers, divergence, precision and dry runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from deepshare.errors import CheckpointError
from deepshare.study.compare.run import Workspace, dry_run
from deepshare.study.compare.runner import Runner
from deepshare.study.compare.study_file import TEACHER, Job, Study, load_study
from deepshare.training.api import fit
from deepshare.training.recipe.files import load_recipe
from tests.study.compare.digits import TEACHER_KEYS, figures, run, runner_in


def test_a_given_teacher(teacher: Path, whole: Runner, tmp_path: Path) -> None:
    runner = runner_in(tmp_path, teacher)
    assert run(runner, "deepshare", runs=2) == ["few-teacher-seed0", "few-deepshare-96-seed0"]
    outcomes = runner.outcomes()
    assert outcomes[Job(TEACHER, "few")].given
    assert outcomes[Job("deepshare", "few", 96)].teacher == outcomes[Job(TEACHER, "few")].definition
    assert figures(runner)["few-deepshare-96-seed0"]["run"] != figures(whole)["few-deepshare-96-seed0"]["run"]
    with pytest.raises(CheckpointError, match="learned from one that was given with --teacher"):
        run(runner_in(tmp_path))
    with pytest.raises(CheckpointError, match="learned from one that the study trains"):
        run(Runner(whole.study, replace(runner.workspace, out=whole.out)))
    early = runner_in(tmp_path / "early")
    assert run(early, "trimmed", minutes=0.5) == ["few-trimmed-96-seed0"]
    with pytest.raises(CheckpointError, match="learned from one that the study trains"):
        run(runner_in(tmp_path / "early", teacher))
    assert [file.name for file in (tmp_path / "early" / "out").iterdir()] == ["few-trimmed-96-seed0.json"]


def test_with_a_given_teacher_what_cannot_be_done_is_said_first(teacher: Path, tmp_path: Path) -> None:
    runner = runner_in(tmp_path, teacher)
    assert run(runner, "trimmed", runs=1) == ["few-teacher-seed0", "few-trimmed-96-seed0"]
    assert runner.outcomes()[Job("trimmed", "few", 96)].refused


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"data.seed": 1}, "other validation images.*--data.validation 64 --data.seed 0"),
        ({"model.arguments.width": 16}, "another network than the study digits has"),
    ],
)
def test_a_teacher_that_does_not_fit(keys: dict[str, object], words: str, tmp_path: Path) -> None:
    fit(recipe=load_recipe("digits-plain", {**TEACHER_KEYS, **keys}), out=tmp_path / "run")
    with pytest.raises(CheckpointError, match=words):
        run(runner_in(tmp_path, tmp_path / "run"))
    assert not (tmp_path / "out").exists()


def test_a_teacher_with_gelus_is_refused(tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds a gelu network: the teacher of a study is a plain one"):
        run(runner_in(tmp_path, tiny_run / "teacher"))
    with pytest.raises(CheckpointError, match="there is no folder"):
        run(runner_in(tmp_path, tmp_path / "nowhere"))


def test_training_that_diverges_is_an_outcome(tmp_path: Path) -> None:
    study = load_study("digits")
    entry = study.methods["relu"]
    recipe = {**entry.recipe, "plain": {"epochs": 3, "lr": 1e30}}
    wild = study.model_copy(update={"methods": {**study.methods, "relu": entry.model_copy(update={"recipe": recipe})}})
    runner = Runner(wild, Workspace(tmp_path / "work", tmp_path / "out"))
    assert run(runner, "relu") == ["few-teacher-seed0", "few-relu-seed0"]
    reason = runner.outcomes()[Job("relu", "few")].refused
    assert reason is not None and reason.startswith("the loss is")


def test_precision_is_that_of_all_runs_and_is_written_down(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "work", tmp_path / "out", precision="bf16-mixed")
    runner = Runner(load_study("digits"), workspace)
    assert run(runner, "relu", runs=1) == ["few-teacher-seed0"]
    teacher = runner.outcomes()[Job(TEACHER, "few")].run
    assert teacher is not None
    assert teacher.environment["precision"] == "bf16-mixed"
    assert teacher.command == "deepshare compare --study digits --precision bf16-mixed"
    (tmp_path / "out" / "few-teacher-seed0.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"few-teacher-seed0 was begun with --precision bf16-mixed: give it again"
    ):
        run(Runner(runner.study, replace(workspace, precision="32-true")), "relu", runs=1)


def test_a_run_is_not_resumed_with_a_compiled_network(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "work", tmp_path / "out")
    runner = Runner(load_study("digits"), workspace)
    assert run(runner, "relu", runs=1) == ["few-teacher-seed0"]
    (tmp_path / "out" / "few-teacher-seed0.json").unlink()
    compiled = replace(workspace, compile=True)
    with pytest.raises(CheckpointError, match=r"was begun with neither --precision bf16-mixed nor --compile: give"):
        run(Runner(runner.study, compiled), "relu", runs=1)
    assert compiled.hardware.compile
    assert compiled.flags == ["--compile"]


def test_dry_runs_keep_nothing(tmp_path: Path) -> None:
    study: Study = load_study("digits")
    workspace = Workspace(tmp_path / "work", tmp_path / "out")
    assert dry_run(study, Job("snl", "few", 96), workspace) is None
    reason = dry_run(study, Job("trimmed", "few", 96), workspace)
    assert reason is not None and "minimum of 170 gates" in reason
    assert list(tmp_path.iterdir()) == []
