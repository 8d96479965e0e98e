"""The queue of a study, with real runs on the bundled digits."""

import json
import random
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deepshare.errors import CheckpointError, DataError
from deepshare.study.compare.definition import TEACHER, Job, Study
from deepshare.study.compare.locks import lock_of
from deepshare.study.compare.outcome import Outcome
from deepshare.study.compare.queue import Limits, Queue
from deepshare.study.compare.recipes import load_study
from deepshare.study.compare.run import Place, dry_run
from deepshare.training.api import fit
from deepshare.training.recipe.files import load_recipe
from deepshare.training.reporter import Reporter

TEACHER_KEYS = {"model.arguments.width": 8, "data.validation": 64, "plain.epochs": 1, "teacher.epochs": 0}


def queue_in(folder: Path, teacher: Path | None = None) -> Queue:
    return Queue(load_study("digits"), Place(folder / "work", folder / "out", teacher=teacher))


def run(queue: Queue, *methods: str, runs: int | None = None, minutes: float | None = None) -> list[str]:
    """Run, and give the names of what was run."""
    done: list[Outcome] = []
    queue.run(Limits(minutes, runs, methods), Reporter, done.append)
    return [outcome.job.name for outcome in done]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Queue:
    """The study run to its end; not to be changed."""
    queue = queue_in(tmp_path_factory.mktemp("whole"))
    run(queue)
    return queue


def test_the_whole_study(whole: Queue) -> None:
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
    assert run(whole) == []


def test_results_say_what_was_run_and_name_no_path(whole: Queue) -> None:
    for file in whole.out.glob("*.json"):
        text = file.read_text()
        assert "/" not in text.replace("deepshare/", ""), text
        assert len(text) < 4000
    content = json.loads((whole.out / "few-deepshare-192-seed1.json").read_text())
    assert content["run"]["seed"] == 1
    assert content["run"]["overrides"]["gelu.epochs"] == 1
    assert content["run"]["command"] == "deepshare compare --study digits"
    assert content["run"]["environment"]["packages"]["torch"]


def figures(queue: Queue) -> dict[str, Any]:
    """All that must be the same however often it was interrupted."""
    outcomes = {job.name: outcome.model_dump() for job, outcome in queue.outcomes().items()}
    for outcome in outcomes.values():
        if outcome["run"]:
            outcome["run"] = {
                key: outcome["run"][key] for key in ("test", "validation", "gates", "epochs", "overrides")
            }
    return outcomes


def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(whole: Queue, tmp_path: Path) -> None:
    flags = ["--study", "digits", "--out", tmp_path / "out", "--work", tmp_path / "work"]
    command = [sys.executable, "-m", "deepshare", "compare", *map(str, flags)]
    for results in (1, 5):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(tmp_path / "out", results, process)
        time.sleep(random.Random().uniform(0, 0.7))  # really random, so that in time every point is tried
        process.kill()
        assert process.wait() == -9
    queue = queue_in(tmp_path)
    states = {state for _, state, _ in queue.states()}
    assert "open" in states
    assert "running" not in states  # nobody runs it any more
    run(queue)
    assert figures(queue) == figures(whole)
    for name in ("few-teacher-seed0", "few-deepshare-96-seed0", "few-snl-192-seed1"):
        weights = [q.place.work / name / "model.safetensors" for q in (queue, whole)]
        assert weights[0].read_bytes() == weights[1].read_bytes()


def wait_for(folder: Path, count: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if len(list(folder.glob("*.json"))) >= count:
            return
        time.sleep(0.01)
    raise AssertionError(f"{folder} never had {count} results")


def test_a_fresh_clone_runs_only_what_is_missing(whole: Queue, tmp_path: Path) -> None:
    shutil.copytree(whole.out, tmp_path / "out")
    queue = queue_in(tmp_path)
    assert run(queue) == []
    assert not list((tmp_path / "work").glob("few-*"))
    (tmp_path / "out" / "few-snl-96-seed0.json").unlink()
    assert run(queue) == ["few-snl-96-seed0"]
    assert [folder.name for folder in (tmp_path / "work").glob("few-*")] == ["few-snl-96-seed0"]  # no other teacher
    assert figures(queue) == figures(whole)


def test_a_teacher_whose_weights_are_gone_is_trained_again(whole: Queue, tmp_path: Path) -> None:
    shutil.copytree(whole.out, tmp_path / "out")
    queue, teacher = queue_in(tmp_path), tmp_path / "out" / "few-teacher-seed0"
    shutil.rmtree(teacher)
    (tmp_path / "out" / "few-snl-96-seed0.json").unlink()
    assert run(queue) == ["few-snl-96-seed0"]
    weights = [folder / "few-teacher-seed0" / "model.safetensors" for folder in (queue.out, whole.out)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert figures(queue) == figures(whole)


def test_what_cannot_be_done_is_said_before_anything_is_trained(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    assert run(queue, "trimmed", minutes=0.5) == [
        "few-trimmed-96-seed0"
    ]  # a run takes a minute as long as none is known
    refused = queue.outcomes()[Job("trimmed", "few", 96)]
    assert refused.refused is not None and "minimum of 170 gates" in refused.refused
    assert not list(queue.place.work.glob("few-*"))
    assert run(queue, "trimmed", minutes=0.5) == []


def test_other_images_are_refused_before_anything_is_trained(whole: Queue, tmp_path: Path) -> None:
    shutil.copytree(whole.out, tmp_path / "out")
    queue, file = queue_in(tmp_path), tmp_path / "out" / "few-relu-seed0.json"
    content = json.loads(file.read_text())
    images = content["run"]["environment"]["images"]
    assert len(images) == 50  # three checksums: to train on, to validate with and to test with
    content["run"]["environment"]["images"] = "0" * 50
    file.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"few-relu-seed0 had other images than few-deepshare-192-seed0 had: "):
        queue.outcomes()
    for other in (tmp_path / "out").glob("*.json"):
        changed = json.loads(other.read_text())
        if "run" in changed:
            changed["run"]["environment"]["images"] = "0" * 50
            other.write_text(json.dumps(changed))
    (tmp_path / "out" / "few-snl-96-seed0.json").unlink()
    with pytest.raises(CheckpointError, match=r"had other images than are there now: "):
        run(queue)
    assert not list(queue.place.work.glob("few-*"))


def test_a_damaged_record_of_a_run_that_was_begun_is_named(whole: Queue, tmp_path: Path) -> None:
    shutil.copytree(whole.out, tmp_path / "out")
    (tmp_path / "out" / "few-snl-96-seed0.json").unlink()
    begun = tmp_path / "work" / "few-snl-96-seed0" / "environment.json"
    begun.parent.mkdir(parents=True)
    begun.write_text('{"precision"')
    with pytest.raises(CheckpointError, match=r"few-snl-96-seed0/environment\.json is missing or damaged"):
        run(queue_in(tmp_path))


def test_a_run_that_was_begun_with_other_images_does_not_go_on(whole: Queue, tmp_path: Path) -> None:
    shutil.copytree(whole.out, tmp_path / "out")
    (tmp_path / "out" / "few-snl-96-seed0.json").unlink()
    begun = tmp_path / "work" / "few-snl-96-seed0"
    shutil.copytree(whole.place.work / begun.name, begun)
    recipe = (begun / "recipe.toml").read_text()
    (begun / "recipe.toml").write_text(recipe.replace(str(whole.out), str(tmp_path / "out")))
    content = json.loads((begun / "environment.json").read_text())
    (begun / "environment.json").write_text(json.dumps({**content, "images": "0" * 50}))
    with pytest.raises(CheckpointError, match="few-snl-96-seed0 was begun with other images than are there now"):
        run(queue_in(tmp_path))
    assert not (tmp_path / "out" / "few-snl-96-seed0.json").exists()


def test_a_network_that_does_not_take_the_images_is_no_result_of_its_methods(tmp_path: Path) -> None:
    study = load_study("digits")
    wrong = study.model_copy(update={"recipe": {**study.recipe, "model": {"arguments": {"width": 8, "channels": 3}}}})
    queue = Queue(wrong, Place(tmp_path / "work", tmp_path / "out"))
    with pytest.raises(DataError, match="does not take images of 1x8x8"):
        run(queue)
    assert not list((tmp_path / "out").iterdir())


def test_limits(tmp_path: Path) -> None:
    queue = queue_in(tmp_path)
    assert run(queue, "snl", minutes=0.5) == []  # as long as none is known, a run takes a minute
    assert run(queue, "snl", runs=2) == ["few-teacher-seed0", "few-snl-96-seed0"]
    states = {job.name: state for job, state, _ in queue.states()}
    assert (states["few-snl-96-seed0"], states["few-relu-seed0"]) == ("finished", "open")
    assert queue.minutes(Job("snl", "few", 192), queue.outcomes()) < 0.5


def test_one_queue_at_a_time(whole: Queue, tmp_path: Path) -> None:
    shutil.copytree(whole.out, tmp_path / "out")
    (tmp_path / "out" / "few-relu-seed0.json").unlink()
    queue = queue_in(tmp_path)
    seen = []

    class Watching(Reporter):
        def note(self, text: str) -> None:
            seen.append({job.name: state for job, state, _ in queue_in(tmp_path).states()}["few-relu-seed0"])
            with pytest.raises(CheckpointError, match="another queue is at work"):
                run(queue_in(tmp_path))

    queue.run(Limits(), Watching, lambda outcome: None)
    assert seen[0] == "running"


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain network that was trained on more images."""
    folder = tmp_path_factory.mktemp("teacher") / "run"
    fit(recipe=load_recipe("digits-plain", TEACHER_KEYS), out=folder)
    return folder


def test_a_given_teacher(teacher: Path, whole: Queue, tmp_path: Path) -> None:
    queue = queue_in(tmp_path, teacher)
    assert run(queue, "deepshare", runs=2) == ["few-teacher-seed0", "few-deepshare-96-seed0"]
    outcomes = queue.outcomes()
    assert outcomes[Job(TEACHER, "few")].given
    assert outcomes[Job("deepshare", "few", 96)].teacher == outcomes[Job(TEACHER, "few")].definition
    assert figures(queue)["few-deepshare-96-seed0"]["run"] != figures(whole)["few-deepshare-96-seed0"]["run"]
    with pytest.raises(CheckpointError, match="learned from one that was given with --teacher"):
        run(queue_in(tmp_path))
    with pytest.raises(CheckpointError, match="learned from one that the study trains"):
        run(Queue(whole.study, replace(queue.place, out=whole.out)))
    early = queue_in(tmp_path / "early")
    assert run(early, "trimmed", minutes=0.5) == ["few-trimmed-96-seed0"]
    with pytest.raises(CheckpointError, match="learned from one that the study trains"):
        run(queue_in(tmp_path / "early", teacher))
    assert [file.name for file in (tmp_path / "early" / "out").iterdir()] == ["few-trimmed-96-seed0.json"]


def test_with_a_given_teacher_what_cannot_be_done_is_said_first(teacher: Path, tmp_path: Path) -> None:
    queue = queue_in(tmp_path, teacher)
    assert run(queue, "trimmed", runs=1) == ["few-teacher-seed0", "few-trimmed-96-seed0"]
    assert queue.outcomes()[Job("trimmed", "few", 96)].refused


def test_runs_that_others_are_at_are_left_to_them(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepshare.study.compare.queue.STARTING", 0.1)
    queue, job = queue_in(tmp_path, teacher), Job("snl", "few", 96)
    queue.place.work.mkdir()
    done: list[str] = []
    with lock_of(queue.place.work, job):
        assert {known: state for known, state, _ in queue.states()}[job] == "running"
        assert queue.run(Limits(methods=("snl",)), Reporter, lambda o: done.append(o.job.name)) == "elsewhere"
        assert queue.work_on(job, Reporter()) is None
    assert done == ["few-teacher-seed0", "few-snl-192-seed0"]
    assert {known: state for known, state, _ in queue.states()}[job] == "open"
    assert run(queue, "snl") == ["few-snl-96-seed0"]
    assert queue.work_on(job, Reporter()) is None  # it has its result


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
        run(queue_in(tmp_path, tmp_path / "run"))
    assert not (tmp_path / "out").exists()


def test_a_teacher_with_gelus_is_refused(tiny_run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds a gelu network: the teacher of a study is a plain one"):
        run(queue_in(tmp_path, tiny_run / "teacher"))
    with pytest.raises(CheckpointError, match="there is no folder"):
        run(queue_in(tmp_path, tmp_path / "nowhere"))


def test_training_that_diverges_is_an_outcome(tmp_path: Path) -> None:
    study = load_study("digits")
    entry = study.methods["relu"]
    recipe = {**entry.recipe, "plain": {"epochs": 3, "lr": 1e30}}
    wild = study.model_copy(update={"methods": {**study.methods, "relu": entry.model_copy(update={"recipe": recipe})}})
    queue = Queue(wild, Place(tmp_path / "work", tmp_path / "out"))
    assert run(queue, "relu") == ["few-teacher-seed0", "few-relu-seed0"]
    reason = queue.outcomes()[Job("relu", "few")].refused
    assert reason is not None and reason.startswith("the loss is")


def test_precision_is_that_of_all_runs_and_is_written_down(tmp_path: Path) -> None:
    place = Place(tmp_path / "work", tmp_path / "out", precision="bf16-mixed")
    queue = Queue(load_study("digits"), place)
    assert run(queue, "relu", runs=1) == ["few-teacher-seed0"]
    teacher = queue.outcomes()[Job(TEACHER, "few")].run
    assert teacher is not None
    assert teacher.environment["precision"] == "bf16-mixed"
    assert teacher.command == "deepshare compare --study digits --precision bf16-mixed"
    (tmp_path / "out" / "few-teacher-seed0.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"few-teacher-seed0 was begun with --precision bf16-mixed: give it again"
    ):
        run(Queue(queue.study, replace(place, precision="32-true")), "relu", runs=1)


def test_dry_runs_keep_nothing(tmp_path: Path) -> None:
    study: Study = load_study("digits")
    place = Place(tmp_path / "work", tmp_path / "out")
    assert dry_run(study, Job("snl", "few", 96), place) is None
    reason = dry_run(study, Job("trimmed", "few", 96), place)
    assert reason is not None and "minimum of 170 gates" in reason
    assert list(tmp_path.iterdir()) == []
