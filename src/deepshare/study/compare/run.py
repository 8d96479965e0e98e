"""One run of a study, from its recipe to its outcome."""

import hashlib
import json
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepshare.errors import BudgetError, CheckpointError, RecipeError, UnsupportedModelError
from deepshare.private.cost import predict
from deepshare.sharing.convert import site_gates
from deepshare.sharing.sites import find_sites
from deepshare.study.compare.definition import GELU_TEACHER, TEACHER, TEACHERS, Job, Study
from deepshare.study.compare.locks import lock_of
from deepshare.study.compare.outcome import Outcome, Outcomes, Private, teacher_of
from deepshare.study.compare.recipes import checksum, is_path, recipe_of, starts_from_teacher, taught
from deepshare.training.api import fit, teach
from deepshare.training.build import build, check_finished, load, plain_network
from deepshare.training.hardware import Hardware, Precision
from deepshare.training.method_factory import check_method
from deepshare.training.recipe.catalog import record
from deepshare.training.recipe.files import Recipe, load_recipe
from deepshare.training.reporter import Reporter
from deepshare.training.run.folder import RunFolder, own_lines, read_environment
from deepshare.training.run.weights import read_weights


@dataclass(frozen=True)
class Place:
    """Where a study is run.

    Attributes:
        work: The folder of its run folders.
        out: The folder of its results, which keeps the run folders of its teachers, too.
        data_dir: Where data sets are.
        download: Whether to fetch a data set that is not there.
        teacher: The run folder of a teacher in the place of those that the study trains.
        precision: Of the forward and backward pass in training; accuracy is always that in float32.
    """

    work: Path
    out: Path
    data_dir: Path | None = None
    download: bool = False
    teacher: Path | None = None
    precision: Precision = "32-true"


def run(study: Study, job: Job, place: Place, reporter: Reporter) -> Outcome:
    """Run a job, or go on with it.

    What the method cannot do, and training that diverges, is an outcome, too.

    Raises:
        DataError: The data is missing or damaged.
        CheckpointError: The run folder holds something else, or cannot be written.
    """
    recipe = recipe_of(study, job)
    if job.method == TEACHER and place.teacher:
        return _outcome(study, job, place, place.teacher, load_recipe(RunFolder(place.teacher).recipe))
    if job.method in TEACHERS:
        trained = _outcome(study, job, place, _train_teacher(study, job, place, reporter), recipe)
        given = checksum(load_recipe(RunFolder(place.teacher).recipe)) if place.teacher else trained.teacher
        return trained.model_copy(update={"teacher": given})
    folder = place.work / job.name
    sources = {teacher.method: _teacher(study, teacher, place, reporter) for teacher in study.teachers_of(job)}
    teacher = checksum(load_recipe(RunFolder(sources[TEACHER]).recipe))
    if recipe.method.name != "relu" or starts_from_teacher(study, recipe):
        recipe = taught(recipe, sources[TEACHER], sources.get(GELU_TEACHER))
    try:
        _fit(recipe, folder, place, reporter)
    except (BudgetError, UnsupportedModelError, RecipeError) as error:
        return _empty(study, job, recipe, teacher).model_copy(update={"refused": str(error)})
    known = {"teacher": teacher, "teachers": _checksums(recipe) or None}
    return _outcome(study, job, place, folder, recipe).model_copy(update=known)


def dry_run(study: Study, job: Job, place: Place) -> str | None:
    """Train one batch of every phase of a run and of its teacher, and keep nothing; gives why a method cannot do it.

    Raises:
        DataError: The data is missing or damaged.
    """
    try:
        fit(
            recipe=recipe_of(study, job),
            out=place.work,
            data_dir=place.data_dir,
            download=place.download,
            dry_run=True,
            hardware=Hardware(precision=place.precision),
        )
    except (BudgetError, UnsupportedModelError) as error:
        return str(error)
    return None


def refusal(study: Study, job: Job, input_size: Sequence[int], outcomes: Outcomes) -> Outcome | None:
    """The outcome of a run whose method cannot do the network or the budget, known before anything is trained."""
    recipe = recipe_of(study, job)
    try:
        check_method(recipe, plain_network(recipe, "shared"), input_size)
    except (BudgetError, UnsupportedModelError) as error:
        empty = _empty(study, job, recipe, teacher_of(study, job.data, outcomes))
        return empty.model_copy(update={"refused": str(error)})
    return None


def _fit(recipe: Recipe, folder: Path, place: Place, reporter: Reporter, *, gelu: bool = False) -> None:
    """Train the network of a recipe, or no more than its teacher with GELUs."""
    run = RunFolder(folder)
    before = read_environment(run).get("precision", "32-true") if run.environment.exists() else place.precision
    if before != place.precision:
        raise CheckpointError(f"{folder} was begun with --precision {before}: give it again, or another --work")
    train = teach if gelu else fit
    train(
        recipe=recipe,
        out=folder,
        data_dir=place.data_dir,
        download=place.download,
        resume=True,
        hardware=Hardware(precision=place.precision),
        reporter=reporter,
    )


def teacher_is_there(job: Job, place: Place) -> bool:
    """Whether the weights of a teacher are there."""
    return (job.method == TEACHER and place.teacher is not None) or _kept(job, place).exists()


def _teacher(study: Study, job: Job, place: Place, reporter: Reporter) -> Path:
    """The run folder of a teacher, which is trained anew where its outcome is there and its weights are not."""
    if job.method == TEACHER and place.teacher:
        return place.teacher
    if not teacher_is_there(job, place):
        with lock_of(place.work, job):  # of all who miss it, one trains it and the others wait
            if not teacher_is_there(job, place):
                reporter.note(f"{job.name}: trained again, since its weights are not in {place.out}")
                _train_teacher(study, job, place, reporter)
    return _kept(job, place)


def _kept(job: Job, place: Place) -> Path:
    return place.out / job.name


def _train_teacher(study: Study, job: Job, place: Place, reporter: Reporter) -> Path:
    """Train a teacher, and keep its weights with the results, so that runs elsewhere learn from the same one."""
    folder, kept = RunFolder(place.work / job.name), _kept(job, place)
    _fit(recipe_of(study, job), folder.path, place, reporter, gelu=job.method == GELU_TEACHER)
    with tempfile.TemporaryDirectory(dir=place.out, prefix=f".{job.name}.") as temporary:
        whole = Path(temporary) / job.name
        whole.mkdir()
        for file in (folder.model, folder.recipe, folder.metrics, folder.result, folder.images):
            shutil.copy(file, whole)
        named = read_environment(folder) | {"command": _command(study, place)}  # without anybody's paths
        RunFolder(whole).environment.write_text(json.dumps(named, indent=1) + "\n", encoding="utf-8")
        if kept.exists():
            kept.rename(Path(temporary) / "before")
        whole.rename(kept)
    return folder.path


def check_teacher(study: Study, folder: Path) -> str:
    """See whether a finished run can teach all methods of a study; gives the checksum of its recipe.

    Raises:
        CheckpointError: It is not finished, another network, or saw images that the study validates with.
    """
    check_finished(RunFolder(folder))
    kind = read_weights(RunFolder(folder).model)[1].network
    if kind != "plain":
        raise CheckpointError(f"{folder} holds a {kind} network: the teacher of a study is a plain one, with its ReLUs")
    theirs = load_recipe(RunFolder(folder).recipe)
    for data in study.data:
        ours = recipe_of(study, Job(TEACHER, data))
        if theirs.model.model_copy(update={"weights": None}) != ours.model:
            raise CheckpointError(f"{folder} holds another network than the study {study.name} has: give another")
        if _split(theirs) != _split(ours):
            raise CheckpointError(
                f"{folder} was trained with other validation images than those of the study {study.name}: "
                f"train it with --data.validation {ours.data.validation} --data.seed {ours.data.seed}"
            )
    return checksum(theirs)


def _split(recipe: Recipe) -> tuple[str, int | float, int]:
    data = recipe.data
    return data.name, data.validation, recipe.seed if data.seed is None else data.seed


def _empty(study: Study, job: Job, recipe: Recipe, teacher: str) -> Outcome:
    return Outcome(
        study=study.name,
        method=job.method,
        data=job.data,
        budget=job.budget,
        seed=job.seed,
        definition=checksum(recipe),
        teacher=teacher,
    )


def _command(study: Study, place: Place) -> list[str]:
    command = ["deepshare", "compare", "--study", study.name]
    return command if place.precision == "32-true" else [*command, "--precision", place.precision]


def _outcome(study: Study, job: Job, place: Place, folder: Path, recipe: Recipe) -> Outcome:
    finished, given = record(folder), folder == place.teacher
    overrides = {key: value for key, value in finished.overrides.items() if value is not None and not is_path(key)}
    command = finished.command if given else shlex.join(_command(study, place))
    network, size = load(folder), read_weights(RunFolder(folder).model)[1].input_size
    sites = dict.fromkeys((site.name for site in find_sites(build(recipe.model), size)), 0)
    try:
        online = predict(network, size, study.engine).online
        sent = max(online.server_bytes, online.client_bytes)
        private = Private(engine=study.engine, sent=sent, rounds=online.rounds)
    except UnsupportedModelError:
        private = None
    update = {
        "given": given,
        "run": finished.model_copy(update={"overrides": overrides, "command": command}),
        "searched": _searched(folder, job),
        "private": private,
        "curve": _curve(folder),
        "site_gates": sites | site_gates(network, size),
        "weights": _sha256(RunFolder(folder).model),
    }
    return _empty(study, job, recipe, checksum(recipe)).model_copy(update=update)


def _curve(folder: Path) -> dict[str, list[float]]:
    """The validation score in percent after every epoch, by phase."""
    curve: dict[str, list[float]] = {}
    for line in own_lines(RunFolder(folder)):
        score = line["val_miou"] if "val_miou" in line else line["val_accuracy"]
        curve.setdefault(line["phase"], []).append(round(100 * score, 2))
    return curve


def _checksums(recipe: Recipe) -> dict[str, str]:
    """Of the weights that a recipe was given."""
    given = {"plain": recipe.model.weights, "gelu": None}
    given |= {"plain": recipe.plain.weights} if recipe.plain and recipe.plain.weights else {}
    given |= {"gelu": recipe.teacher.weights} if recipe.teacher else {}
    return {name: _sha256(RunFolder(Path(path)).model) for name, path in given.items() if path}


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _searched(folder: Path, job: Job) -> int | None:
    """The gates at the end of the search, if they were not as many as the budget."""
    left = [int(line["gates"]) for line in RunFolder(folder).lines() if line["phase"] == "search" and "gates" in line]
    return left[-1] if left and left[-1] != job.budget else None
