"""One run of a study, from its recipe to its outcome: training of teachers and methods in a workspace."""

import hashlib
import json
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout
from torch import nn

from deepshare.errors import BudgetError, CheckpointError, RecipeError, UnsupportedModelError
from deepshare.private.cost import made, predict
from deepshare.sharing.convert import site_gates
from deepshare.sharing.sites import find_sites
from deepshare.study.compare.outcome import Outcomes, PrivateCost, RunOutcome, teacher_of
from deepshare.study.compare.study_file import (
    GELU_TEACHER,
    TEACHER,
    TEACHERS,
    Job,
    Study,
    checksum,
    is_path,
    recipe_of,
    starts_from_teacher,
    taught,
)
from deepshare.training.api import fit, teach
from deepshare.training.build import build, check_finished, load, plain_network
from deepshare.training.catalog import record
from deepshare.training.hardware import Hardware, Precision
from deepshare.training.pipeline import check_method
from deepshare.training.recipe.files import Recipe, load_recipe, to_toml
from deepshare.training.reporter import Reporter
from deepshare.training.run.checkpoint import read_weights
from deepshare.training.run.folder import RunFolder, own_lines, read_environment

LOCKS = "locks"


@dataclass(frozen=True)
class Workspace:
    """Folders and settings of a study's runs, with a file lock per run.

    Attributes:
        work: Folder of the run folders.
        out: Folder of the results, which also keeps the networks of teachers and of methods that say so.
        data_dir: Folder of the data sets.
        download: Whether to download a missing data set.
        teacher: Run folder of a teacher to use instead of training one.
        precision: Precision of training; accuracy is always measured in float32.
        compile: Compile the networks, which rounds a little differently.
    """

    work: Path
    out: Path
    data_dir: Path | None = None
    download: bool = False
    teacher: Path | None = None
    precision: Precision = "32-true"
    compile: bool = False

    @property
    def hardware(self) -> Hardware:
        """Hardware of every run."""
        return Hardware(precision=self.precision, compile=self.compile)

    @property
    def flags(self) -> list[str]:
        """Flags that give a run the same hardware."""
        precision = [] if self.precision == "32-true" else ["--precision", self.precision]
        return [*precision, "--compile"] if self.compile else precision

    def lock(self, job: Job) -> FileLock:
        """Lock of a run: its holder alone may write into the run folder. The end of a process frees its locks."""
        folder = self.work / LOCKS
        folder.mkdir(exist_ok=True)
        return FileLock(folder / f"{job.name}.lock")

    def is_running(self, job: Job) -> bool:
        """Return True if a process holds the lock of a run; creates no file."""
        if not (self.work / LOCKS / f"{job.name}.lock").exists():
            return False
        try:
            with self.lock(job).acquire(timeout=0):
                return False
        except Timeout:
            return True

    def kept(self, job: Job) -> Path:
        """Folder of a network among the results."""
        return self.out / job.name

    def has_teacher(self, teacher: Job) -> bool:
        """Return True if the weights of a teacher are available."""
        return (teacher.method == TEACHER and self.teacher is not None) or self.kept(teacher).exists()


def run(study: Study, job: Job, workspace: Workspace, reporter: Reporter) -> RunOutcome:
    """Do a run, or resume it.

    A refusal by the method and a divergence of training are outcomes, too.

    Raises:
        DataError: The data set is missing or damaged.
        CheckpointError: The run folder holds another run, or cannot be written.
    """
    recipe = recipe_of(study, job)
    if job.method == TEACHER and workspace.teacher:
        return _outcome(study, job, workspace, workspace.teacher, load_recipe(RunFolder(workspace.teacher).recipe))
    if job.method in TEACHERS:
        trained = _outcome(study, job, workspace, _train_teacher(study, job, workspace, reporter), recipe)
        return trained.model_copy(update={"teacher": _teacher_checksum(study, job, workspace)})
    folder = workspace.work / job.name
    sources = {teacher.method: _teacher(study, teacher, workspace, reporter) for teacher in study.teachers_of(job)}
    teacher = _teacher_checksum(study, job, workspace)
    if not recipe.is_plain or starts_from_teacher(study, recipe):
        recipe = taught(recipe, sources.get(TEACHER), sources.get(GELU_TEACHER))
    try:
        _fit(recipe, folder, workspace, reporter)
    except (BudgetError, UnsupportedModelError, RecipeError) as error:
        return _empty(study, job, recipe, teacher).model_copy(update={"refused": str(error)})
    if study.methods[job.method].kept:
        _keep(study, job, workspace, RunFolder(folder))
    known = {"teacher": teacher, "teachers": _checksums(recipe) or None}
    return _outcome(study, job, workspace, folder, recipe).model_copy(update=known)


def dry_run(study: Study, job: Job, workspace: Workspace) -> str | None:
    """Train one batch of every phase of a run and of its teacher, keep nothing, and return the reason for a refusal.

    Raises:
        DataError: The data set is missing or damaged.
    """
    try:
        fit(
            recipe=recipe_of(study, job),
            out=workspace.work,
            data_dir=workspace.data_dir,
            download=workspace.download,
            dry_run=True,
            hardware=workspace.hardware,
            progress=False,
        )
    except (BudgetError, UnsupportedModelError) as error:
        return str(error)
    return None


def refusal(study: Study, job: Job, input_size: Sequence[int], outcomes: Outcomes) -> RunOutcome | None:
    """Outcome of a run whose method does not support the network or budget, before any training; None if it does."""
    recipe = recipe_of(study, job)
    try:
        check_method(recipe, plain_network(recipe, "shared"), input_size)
    except (BudgetError, UnsupportedModelError) as error:
        empty = _empty(study, job, recipe, teacher_of(study, job.data, outcomes))
        return empty.model_copy(update={"refused": str(error)})
    return None


def _fit(recipe: Recipe, folder: Path, workspace: Workspace, reporter: Reporter, *, gelu: bool = False) -> None:
    """Train the network of a recipe, or only its teacher with GELUs."""
    run = RunFolder(folder)
    if run.environment.exists():
        environment = read_environment(run)
        before = replace(
            workspace,
            precision=environment.get("precision", "32-true"),
            compile=environment.get("compile", False),
        )
        if before.flags != workspace.flags:
            flags = shlex.join(before.flags) or "neither --precision bf16-mixed nor --compile"
            raise CheckpointError(f"{folder} was begun with {flags}: give it again, or another --work")
    train = teach if gelu else fit
    train(
        recipe=recipe,
        out=folder,
        data_dir=workspace.data_dir,
        download=workspace.download,
        resume=True,
        hardware=workspace.hardware,
        reporter=reporter,
    )


def _teacher_checksum(study: Study, job: Job, workspace: Workspace) -> str:
    """Checksum of the recipe of the plain teacher, given or the study's own."""
    given = workspace.teacher and load_recipe(RunFolder(workspace.teacher).recipe)
    return checksum(given or recipe_of(study, Job(TEACHER, job.data)))


def _teacher(study: Study, job: Job, workspace: Workspace, reporter: Reporter) -> Path:
    """Run folder of a teacher, which is trained again if its weights are missing."""
    if job.method == TEACHER and workspace.teacher:
        return workspace.teacher
    if not workspace.has_teacher(job):
        with workspace.lock(job):  # one process trains it, the others wait
            if not workspace.has_teacher(job):
                reporter.note(f"{job.name}: trained again, since its weights are not in {workspace.out}")
                _train_teacher(study, job, workspace, reporter)
    return workspace.kept(job)


def _train_teacher(study: Study, job: Job, workspace: Workspace, reporter: Reporter) -> Path:
    """Train a teacher, and keep its weights among the results, so that runs on other machines use the same one."""
    folder = RunFolder(workspace.work / job.name)
    _fit(recipe_of(study, job), folder.path, workspace, reporter, gelu=job.method == GELU_TEACHER)
    _keep(study, job, workspace, folder)
    return folder.path


def _keep(study: Study, job: Job, workspace: Workspace, folder: RunFolder) -> None:
    """Keep the network of a finished run among the results, without local paths."""
    kept = workspace.kept(job)
    with tempfile.TemporaryDirectory(dir=workspace.out, prefix=f".{job.name}.") as temporary:
        whole = Path(temporary) / job.name
        whole.mkdir()
        for file in (folder.model, folder.metrics, folder.result, folder.images, folder.plan):
            if file != folder.plan or file.exists():
                shutil.copy(file, whole)
        RunFolder(whole).recipe.write_text(to_toml(recipe_of(study, job)), encoding="utf-8")
        named = read_environment(folder) | {"command": _command(study, workspace)}
        RunFolder(whole).environment.write_text(json.dumps(named, indent=1) + "\n", encoding="utf-8")
        if kept.exists():
            kept.rename(Path(temporary) / "before")
        whole.rename(kept)


def check_teacher(study: Study, folder: Path) -> str:
    """Check that a finished run can teach all methods of a study, and return the checksum of its recipe.

    Raises:
        CheckpointError: It is unfinished, has another network, or saw validation images of the study.
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


def _empty(study: Study, job: Job, recipe: Recipe, teacher: str) -> RunOutcome:
    return RunOutcome(
        study=study.name,
        method=job.method,
        data=job.data,
        budget=job.budget,
        seed=job.seed,
        definition=checksum(recipe),
        teacher=teacher,
    )


def _command(study: Study, workspace: Workspace) -> list[str]:
    return ["deepshare", "compare", "--study", study.name, *workspace.flags]


def _outcome(study: Study, job: Job, workspace: Workspace, folder: Path, recipe: Recipe) -> RunOutcome:
    finished, given = record(folder), folder == workspace.teacher
    overrides = {key: value for key, value in finished.overrides.items() if value is not None and not is_path(key)}
    command = finished.command if given else shlex.join(_command(study, workspace))
    network, size = load(folder), read_weights(RunFolder(folder).model)[1].input_size
    sites = find_sites(build(recipe.model), size)
    gates = dict.fromkeys((site.name for site in sites), 0) | site_gates(network, size)
    pools = [site.name for site in sites if site.compares == "pool"]
    update = {
        "given": given,
        "run": finished.model_copy(update={"overrides": overrides, "command": command}),
        "searched": _searched(folder, job),
        "private": _private(network, size, study.engine),
        "curve": _curve(folder),
        "site_gates": gates,
        "pool_gates": sum(gates[name] for name in pools) if pools else None,
        "weights": _sha256(RunFolder(folder).model),
    }
    return _empty(study, job, recipe, checksum(recipe)).model_copy(update=update)


def _private(network: nn.Module, size: tuple[int, ...], engine: str) -> PrivateCost | None:
    try:
        cost = predict(network, size, engine)
    except UnsupportedModelError:
        return None
    return PrivateCost(
        engine=engine,
        sent=max(cost.online.server_bytes, cost.online.client_bytes),
        rounds=cost.online.rounds,
        dealt=cost.offline.dealer_bytes or made(cost),
        in_a_row=sum(layer.part.comparisons > 0 for layer in cost.layers),
    )


def _curve(folder: Path) -> dict[str, list[float]]:
    """Validation score in percent after every epoch, by phase."""
    curve: dict[str, list[float]] = {}
    for line in own_lines(RunFolder(folder)):
        score = line["val_miou"] if "val_miou" in line else line["val_accuracy"]
        curve.setdefault(line["phase"], []).append(round(100 * score, 2))
    return curve


def _checksums(recipe: Recipe) -> dict[str, str]:
    """Checksums of the weights that a recipe was given."""
    given = {"plain": recipe.model.weights, "gelu": None}
    given |= {"plain": recipe.plain.weights} if recipe.plain and recipe.plain.weights else {}
    given |= {"gelu": recipe.teacher.weights} if recipe.teacher else {}
    return {name: _sha256(RunFolder(Path(path)).model) for name, path in given.items() if path}


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _searched(folder: Path, job: Job) -> int | None:
    """Gates at the end of the search, if they differ from the budget."""
    left = [int(line["gates"]) for line in RunFolder(folder).lines() if line["phase"] == "search" and "gates" in line]
    return left[-1] if left and left[-1] != job.budget else None
