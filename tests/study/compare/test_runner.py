"""Execution of a study, with real runs on the bundled digits."""

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deepshare.errors import CheckpointError, DataError
from deepshare.study.compare.outcome import RunOutcome
from deepshare.study.compare.run import Workspace
from deepshare.study.compare.runner import Limits, Runner, jobs, select, undecided
from deepshare.study.compare.study_file import TEACHER, Job, Selection, Study, load_study
from deepshare.training.reporter import Reporter
from tests.study.compare.digits import figures, run, runner_in
from tests.study.compare.made_outcomes import finished, refused


def test_the_whole_study(whole: Runner) -> None:
    outcomes = whole.outcomes()
    assert {state for _, state, _ in whole.states()} == {"finished", "refused"}
    assert len(outcomes) == 10
    low = outcomes[Job("trimmed", "few", 96)]
    assert low.run is None
    assert low.refused is not None and "minimum of 170 gates" in low.refused
    cut = outcomes[Job("snl", "few", 96)]
    assert cut.run is not None and cut.private is not None
    assert (cut.run.gates, cut.searched, cut.run.epochs) == (96, 1920, {"search": 2, "finetune": 1})
    shared = outcomes[Job("deepshare", "few", 96)]
    assert shared.run is not None and shared.private is not None
    assert shared.run.gates == 96
    assert 0 < shared.private.rounds < cut.private.rounds  # one group compares at once
    assert shared.private.in_a_row is not None and cut.private.in_a_row is not None
    assert 0 < shared.private.in_a_row < cut.private.in_a_row
    assert shared.private.dealt and shared.pool_gates is None
    assert run(whole) == []


def test_results_say_what_was_run_and_name_no_path(whole: Runner) -> None:
    for file in whole.out.glob("*.json"):
        text = file.read_text()
        assert "/" not in text.replace("deepshare/", ""), text
        assert len(text) < 4000
    content = json.loads((whole.out / "few-deepshare-192-seed1.json").read_text())
    assert content["run"]["seed"] == 1
    assert content["run"]["overrides"]["gelu.epochs"] == 1
    assert content["run"]["command"] == "deepshare compare --study digits"
    assert content["run"]["environment"]["packages"]["torch"]


def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(
    whole: Runner, tmp_path: Path, chance: random.Random
) -> None:
    flags = ["--study", "digits", "--out", tmp_path / "out", "--work", tmp_path / "work"]
    command = [sys.executable, "-m", "deepshare", "compare", *map(str, flags)]
    for results in (1, 5):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(tmp_path / "out", results, process)
        time.sleep(chance.uniform(0, 0.7))
        process.kill()
        assert process.wait() == -9
    runner = runner_in(tmp_path)
    states = {state for _, state, _ in runner.states()}
    assert "open" in states
    assert "running" not in states  # nobody runs it any more
    run(runner)
    assert figures(runner) == figures(whole)
    for name in ("few-teacher-seed0", "few-deepshare-96-seed0", "few-snl-192-seed1"):
        weights = [q.workspace.work / name / "model.safetensors" for q in (runner, whole)]
        assert weights[0].read_bytes() == weights[1].read_bytes()


def wait_for(folder: Path, count: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if len(list(folder.glob("*.json"))) >= count:
            return
        time.sleep(0.01)
    raise AssertionError(f"{folder} never had {count} results")


def test_a_fresh_clone_runs_only_what_is_missing(whole: Runner, tmp_path: Path) -> None:
    shutil.copytree(whole.out, tmp_path / "out")
    runner = runner_in(tmp_path)
    assert run(runner) == []
    assert not list((tmp_path / "work").glob("few-*"))
    (tmp_path / "out" / "few-snl-96-seed0.json").unlink()
    assert run(runner) == ["few-snl-96-seed0"]
    assert [folder.name for folder in (tmp_path / "work").glob("few-*")] == ["few-snl-96-seed0"]  # no other teacher
    assert figures(runner) == figures(whole)


def test_a_teacher_whose_weights_are_gone_is_trained_again(whole: Runner, tmp_path: Path) -> None:
    shutil.copytree(whole.out, tmp_path / "out")
    runner, teacher = runner_in(tmp_path), tmp_path / "out" / "few-teacher-seed0"
    shutil.rmtree(teacher)
    (tmp_path / "out" / "few-snl-96-seed0.json").unlink()
    assert run(runner) == ["few-snl-96-seed0"]
    weights = [folder / "few-teacher-seed0" / "model.safetensors" for folder in (runner.out, whole.out)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert figures(runner) == figures(whole)


def test_what_cannot_be_done_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    runner = runner_in(tmp_path)
    assert run(runner, "trimmed", minutes=0.5) == [
        "few-trimmed-96-seed0"
    ]  # a run takes a minute as long as none is known
    refused = runner.outcomes()[Job("trimmed", "few", 96)]
    assert refused.refused is not None and "minimum of 170 gates" in refused.refused
    assert not list(runner.workspace.work.glob("few-*"))
    assert run(runner, "trimmed", minutes=0.5) == []


def test_other_images_are_refused_before_anything_is_trained(whole: Runner, tmp_path: Path) -> None:
    shutil.copytree(whole.out, tmp_path / "out")
    runner, file = runner_in(tmp_path), tmp_path / "out" / "few-relu-seed0.json"
    content = json.loads(file.read_text())
    images = content["run"]["environment"]["images"]
    assert len(images) == 50  # three checksums: to train on, to validate with and to test with
    content["run"]["environment"]["images"] = "0" * 50
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"few-relu-seed0 had other images than few-deepshare-192-seed0 had: "):
        runner.outcomes()
    for other in (tmp_path / "out").glob("*.json"):
        changed = json.loads(other.read_text())
        if "run" in changed:
            changed["run"]["environment"]["images"] = "0" * 50
            other.write_text(json.dumps(changed))
    (tmp_path / "out" / "few-snl-96-seed0.json").unlink()
    with pytest.raises(CheckpointError, match=r"had other images than are there now: "):
        run(runner)
    assert not list(runner.workspace.work.glob("few-*"))


def test_a_damaged_record_of_a_run_that_was_begun_is_named(whole: Runner, tmp_path: Path) -> None:
    shutil.copytree(whole.out, tmp_path / "out")
    (tmp_path / "out" / "few-snl-96-seed0.json").unlink()
    begun = tmp_path / "work" / "few-snl-96-seed0" / "environment.json"
    begun.parent.mkdir(parents=True)
    begun.write_text('{"precision"')
    with pytest.raises(CheckpointError, match=r"few-snl-96-seed0/environment\.json is missing or damaged"):
        run(runner_in(tmp_path))


def test_a_run_that_was_begun_with_other_images_does_not_go_on(whole: Runner, tmp_path: Path) -> None:
    shutil.copytree(whole.out, tmp_path / "out")
    (tmp_path / "out" / "few-snl-96-seed0.json").unlink()
    begun = tmp_path / "work" / "few-snl-96-seed0"
    shutil.copytree(whole.workspace.work / begun.name, begun)
    recipe = (begun / "recipe.toml").read_text()
    (begun / "recipe.toml").write_text(recipe.replace(str(whole.out), str(tmp_path / "out")))
    content = json.loads((begun / "environment.json").read_text())
    (begun / "environment.json").write_text(json.dumps({**content, "images": "0" * 50}))
    with pytest.raises(CheckpointError, match="few-snl-96-seed0 was begun with other images than are there now"):
        run(runner_in(tmp_path))
    assert not (tmp_path / "out" / "few-snl-96-seed0.json").exists()


def test_a_network_that_does_not_take_the_images_is_no_result_of_its_methods(tmp_path: Path) -> None:
    study = load_study("digits")
    wrong = study.model_copy(update={"recipe": {**study.recipe, "model": {"arguments": {"width": 8, "channels": 3}}}})
    runner = Runner(wrong, Workspace(tmp_path / "work", tmp_path / "out"))
    with pytest.raises(DataError, match="does not take images of 1x8x8"):
        run(runner)
    assert not list((tmp_path / "out").iterdir())


def test_limits(tmp_path: Path) -> None:
    runner = runner_in(tmp_path)
    assert run(runner, "snl", minutes=0.5) == []  # as long as none is known, a run takes a minute
    assert run(runner, "snl", runs=2) == ["few-teacher-seed0", "few-snl-96-seed0"]
    states = {job.name: state for job, state, _ in runner.states()}
    assert (states["few-snl-96-seed0"], states["few-relu-seed0"]) == ("finished", "open")
    assert runner.minutes(Job("snl", "few", 192), runner.outcomes()) < 0.5


def test_one_queue_at_a_time(whole: Runner, tmp_path: Path) -> None:
    shutil.copytree(whole.out, tmp_path / "out")
    (tmp_path / "out" / "few-relu-seed0.json").unlink()
    runner = runner_in(tmp_path)
    seen = []

    class Watching(Reporter):
        def note(self, text: str) -> None:
            seen.append({job.name: state for job, state, _ in runner_in(tmp_path).states()}["few-relu-seed0"])
            with pytest.raises(CheckpointError, match="another deepshare compare is running"):
                run(runner_in(tmp_path))

    runner.run(Limits(), Watching, lambda outcome: None)
    assert seen[0] == "running"


def test_runs_that_others_are_at_are_left_to_them(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepshare.study.compare.runner.STARTING", 0.1)
    runner, job = runner_in(tmp_path, teacher), Job("snl", "few", 96)
    runner.workspace.work.mkdir()
    done: list[str] = []
    with runner.workspace.lock(job):
        assert {known: state for known, state, _ in runner.states()}[job] == "running"
        assert runner.run(Limits(methods=("snl",)), Reporter, lambda o: done.append(o.job.name)) == "elsewhere"
        assert runner.work_on(job, Reporter()) is None
    assert done == ["few-teacher-seed0", "few-snl-192-seed0"]
    assert {known: state for known, state, _ in runner.states()}[job] == "open"
    assert run(runner, "snl") == ["few-snl-96-seed0"]
    assert runner.work_on(job, Reporter()) is None  # it has its result


def outcomes(study: Study, scores: dict[str, float], budget: int = 192) -> dict[Job, RunOutcome]:
    found = {Job(method, "few", budget): score for method, score in scores.items()}
    return {job: finished(study, job, score) for job, score in found.items()}


def test_the_teacher_comes_first_and_choices_come_when_they_can_be_made(digits: Study) -> None:
    every = jobs(digits, {})
    assert every[0] == Job(TEACHER, "few")
    assert [job.name for job in every[1:4]] == ["few-relu-seed0", "few-deepshare-96-seed0", "few-snl-96-seed0"]
    assert [part.about for part in undecided(digits, {})] == ["another seed for the two closest"]
    decided = outcomes(digits, {"deepshare": 60.0, "snl": 50.0})
    assert undecided(digits, decided) == []
    assert jobs(digits, decided)[len(every) :] == [Job("deepshare", "few", 192, 1), Job("snl", "few", 192, 1)]


def test_a_method_without_a_result_is_not_chosen(digits: Study) -> None:
    job = Job("snl", "few", 192)
    known = {**outcomes(digits, {"deepshare": 60.0}), job: refused(digits, job, "it cannot")}
    assert undecided(digits, known) == []
    assert len(jobs(digits, known)) == len(jobs(digits, {}))


def test_leaders_and_neighbours() -> None:
    ranked = {"a": 60.0, "b": 59.0, "c": 50.0, "d": 49.5}
    assert select(Selection(by="leaders", count=2, data="few"), ranked) == {"a", "b"}
    assert select(Selection(by="closest", count=1, data="few"), ranked) == {"c", "d"}
    assert select(Selection(by="closest", count=2, data="few"), ranked) == {"a", "b", "c", "d"}
