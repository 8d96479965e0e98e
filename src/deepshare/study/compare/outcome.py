"""Outcomes of runs: one JSON file per run, checked against the study and against each other."""

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from deepshare.errors import CheckpointError
from deepshare.files import write_atomically
from deepshare.methods.deepshare import DeepShareOptions, first_phase
from deepshare.study.compare.study_file import TEACHER, TEACHERS, Job, Study, checksum, is_path, recipe_of
from deepshare.training.catalog import Finished
from deepshare.training.recipe.files import differences, load_recipe
from deepshare.training.recipe.schema import Section


class PrivateCost(Section):
    """Predicted cost of private inference of one image.

    Attributes:
        engine: Engine that it is predicted for.
        sent: Bytes that the busier party sends with the image.
        rounds: Exchanges that wait for the other party.
        dealt: Bytes before the image, from a dealer or between the parties. Early outcomes do not have it.
        in_a_row: Layers that compare, one after the other. Early outcomes do not have it.
    """

    engine: str
    sent: int
    rounds: int
    dealt: int | None = None
    in_a_row: int | None = None


class RunOutcome(Section):
    """Outcome of a run.

    Attributes:
        study: Name of the study.
        method: See `Job`.
        data: See `Job`.
        budget: See `Job`.
        seed: See `Job`.
        definition: Checksum of its recipe.
        teacher: Checksum of its teacher's recipe; for the teacher its own.
        given: Whether it is a teacher that was trained elsewhere.
        refused: Reason for a missing result: the method does not support it, or training diverged.
        run: The result.
        searched: Gates that the search left, where they differed from the budget and were corrected by rank.
        private: Cost of private inference; None if the engine does not support the network.
        curve: Validation score in percent after every epoch, by phase.
        site_gates: Gates of each site in the end, including 0.
        pool_gates: Gates of max-pooling among them, where it is made of gates.
        weights: SHA-256 checksum of its weights.
        teachers: SHA-256 checksums of the trained networks that it started or learned from, plain and gelu.
    """

    study: str
    method: str
    data: str
    budget: int | None = None
    seed: int
    definition: str
    teacher: str
    given: bool = False
    refused: str | None = None
    run: Finished | None = None
    searched: int | None = None
    private: PrivateCost | None = None
    curve: dict[str, list[float]] | None = None
    site_gates: dict[str, int] | None = None
    pool_gates: int | None = None
    weights: str | None = None
    teachers: dict[str, str] | None = None

    @property
    def job(self) -> Job:
        """The run that it is the outcome of."""
        return Job(self.method, self.data, self.budget, self.seed)


Outcomes = Mapping[Job, RunOutcome]


def best_epoch(study: Study, outcome: RunOutcome) -> tuple[int, float] | None:
    """The epoch of the last phase, from 1, with the highest validation score, and that score; None if unknown.

    Epochs with more gates than in the end do not count. Early outcomes have the curve alone.
    """
    if outcome.run and outcome.run.best:
        return outcome.run.best.epoch, outcome.run.best.validation
    if not outcome.curve:
        return None
    recipe = recipe_of(study, outcome.job)
    phase, scores = list(outcome.curve.items())[-1]
    soft = len(scores) - 1 if phase == "switch" else 0
    faded = recipe.section(DeepShareOptions).fade if phase == first_phase(recipe) else 0
    first = min(max(soft, faded), len(scores) - 1)
    best = max(scores[first:])
    return scores.index(best, first) + 1, best


def write(outcome: RunOutcome, folder: Path) -> None:
    """Write an outcome into the folder of results."""
    known = {key: value for key, value in outcome.model_dump(mode="json").items() if value is not None}
    text = json.dumps(known, indent=1)
    write_atomically(folder / f"{outcome.job.name}.json", f"{text}\n".encode())


def read_all(study: Study, folder: Path) -> dict[Job, RunOutcome]:
    """Read all outcomes in a folder of results.

    Raises:
        CheckpointError: A file is damaged, or belongs to another study, definition or teacher.
    """
    files = sorted(folder.glob("*.json"))
    outcomes = {outcome.job: outcome for outcome in (_read(study, file) for file in files)}
    for job, outcome in outcomes.items():
        teacher = teacher_of(study, job.data, outcomes)
        if outcome.teacher != teacher:
            raise CheckpointError(
                f"{folder / job.name}.json learned from another teacher than the study's: "
                "give results with another teacher an --out of their own"
            )
    for data in study.data:
        check_images(data, outcomes)
    return outcomes


def check_images(data: str, outcomes: Outcomes, now: str | None = None) -> None:
    """Check that all runs on the same training images saw images with the same checksum, where it was recorded.

    A given teacher may have been trained on other images.

    Args:
        data: Name of the images in the study.
        outcomes: All outcomes so far.
        now: Checksum of the images that are present now, if more runs follow.

    Raises:
        CheckpointError: Checksums differ.
    """
    first, others = now, "are there now"
    for job, outcome in outcomes.items():
        images = outcome.run.environment.get("images") if outcome.run and job.data == data else None
        if images is None or outcome.given:
            continue
        if first is None:
            first, others = images, f"{job.name} had"
        elif images != first:
            raise CheckpointError(
                f"{job.name} had other images than {others}: give results with other images an --out and --work of "
                f"their own, or delete {job.name} in both folders to repeat its run"
            )


def teacher_of(study: Study, data: str, outcomes: Outcomes) -> str:
    """Checksum of the recipe of the teacher for the given images."""
    job = Job(TEACHER, data)
    return outcomes[job].definition if job in outcomes else checksum(recipe_of(study, job))


def _read(study: Study, file: Path) -> RunOutcome:
    try:
        outcome = RunOutcome.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise CheckpointError(
            f"{file} is damaged ({_wrong(error)}): restore it, or delete it to repeat its run"
        ) from None
    problem = _problem(study, outcome, file)
    if problem:
        raise CheckpointError(
            f"{file} {problem}: give another --out and --work, or delete it and {file.stem} in the folder of --work to "
            "repeat its run"
        )
    return outcome


def _wrong(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return ": ".join([*(".".join(map(str, first["loc"])),) * bool(first["loc"]), first["msg"]])


def _problem(study: Study, outcome: RunOutcome, file: Path) -> str | None:
    job = outcome.job
    if outcome.study != study.name:
        return f"is a result of the study {outcome.study}, not of {study.name}"
    if file.stem != job.name:
        return f"holds the result of {job.name}"
    if job.data not in study.data or job.method not in (*TEACHERS, *study.methods):
        return f"is a result of {job.method} on {job.data}, which the study no longer has"
    recipe = recipe_of(study, job)
    if outcome.given or outcome.definition == checksum(recipe):
        return None
    now = {key: new for key, (_, new) in differences(load_recipe(study.base), recipe).items()}
    then = now if outcome.run is None else outcome.run.overrides
    keys = [key for key in {**then, **now} if then.get(key) != now.get(key) and not is_path(key)]
    said = "; ".join(f"{key} was {then.get(key)} and is {now.get(key)}" for key in keys[:3])
    return f"was run by another definition of the study ({said or f'{study.base} has changed'})"
