"""Studies as files, and the recipe of each of their runs."""

import hashlib
import json
import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from deepshare.errors import RecipeError
from deepshare.study.compare.definition import TEACHER, TEACHERS, Job, Study
from deepshare.text import nearest
from deepshare.training.recipe.files import Recipe, changed, flat, load_recipe
from deepshare.training.recipe.files import names as recipe_names
from deepshare.training.recipe.schema import RESULT_PHASES, SHARING

SPLIT = 0  # seed of validation images and subset, which are the same for runs of all seeds
WORDS = ("name", "about", "paper")  # what a recipe says without deciding anything

_FOLDER = resources.files("deepshare.study.compare") / "studies"


def names() -> list[str]:
    """Return the names of the packaged studies."""
    return sorted(file.name.removesuffix(".toml") for file in _FOLDER.iterdir() if file.name.endswith(".toml"))


def load_study(name_or_path: str) -> Study:
    """Read a study and check the recipe of every run that it may have.

    Args:
        name_or_path: A packaged name or a TOML file.

    Raises:
        RecipeError: There is no such study, or something in it is wrong.
    """
    file = _locate(name_or_path)
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
        study = Study.model_validate({"name": file.name.removesuffix(".toml"), **values, "source": name_or_path})
        if study.base not in recipe_names():
            raise RecipeError(
                f'the study {study.name}: base = "{study.base}" is no recipe of the package: '
                f"put what is different from one into [recipe]{nearest(study.base, recipe_names())}"
            )
        for part in study.passes:
            for job in study.jobs_of(part):
                recipe_of(study, job)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{file.name}: not a TOML file: {error}") from None
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        where = ".".join(map(str, wrong["loc"]))
        raise RecipeError(f"the study {file.name}: {where}{': ' * bool(where)}{_problem(wrong)}") from None
    return study


def _problem(wrong: ErrorDetails) -> str:
    match wrong["type"]:
        case "value_error":
            return str(wrong["ctx"]["error"])
        case "missing":
            return "is missing: a study has it, as the packaged ones do"
    return wrong["msg"]


def _locate(name_or_path: str) -> Traversable:
    if name_or_path.endswith(".toml"):
        if not Path(name_or_path).is_file():
            raise RecipeError(f"{name_or_path}: there is no such study file")
        return Path(name_or_path)
    if Path(name_or_path).is_file():
        raise RecipeError(f"{name_or_path}: a study is a TOML file, and its name ends in .toml")
    if name_or_path not in names():
        known = f"{nearest(name_or_path, names())} (there are {', '.join(names())})"
        raise RecipeError(f'no study is called "{name_or_path}"{known}')
    return _FOLDER / f"{name_or_path}.toml"


def recipe_of(study: Study, job: Job) -> Recipe:
    """Make the recipe of a run; the teacher is still to be trained in it.

    Raises:
        RecipeError: A key or value is wrong, or the method has other epochs than the study.
    """
    parts = [study.recipe, study.data[job.data].recipe]
    if job.method not in TEACHERS:
        entry = study.methods[job.method]
        parts += [*study.changes(job.method), entry.at.get(str(job.budget), {}), entry.on.get(job.data, {})]
    changes = {key: value for part in parts for key, value in flat(part)}
    if job.budget is not None:
        changes["budget.gates"] = job.budget
    try:
        recipe = load_recipe(study.base, {**changes, "seed": job.seed, "data.seed": SPLIT})
    except RecipeError as error:
        raise RecipeError(f"the study {study.name}, method {job.method}: {error}") from None
    if job.method in TEACHERS:
        return recipe
    teacher = recipe_of(study, Job(TEACHER, job.data))
    if (recipe.needs_plain or recipe.method.name == "relu") and recipe.model_of("plain") != teacher.model:
        raise RecipeError(
            f"the study {study.name}, method {job.method}: its network is not the teacher's, which it starts or learns "
            "from: give the teacher's as plain.model, or none of its own"
        )
    trained = ("plain",) if recipe.method.name == "relu" else RESULT_PHASES
    epochs = sum(phase.epochs for name, phase in recipe.phases.items() if name in trained)
    before = _counted(study, recipe, teacher)
    if epochs + before != study.epochs:
        raise RecipeError(
            f"the study {study.name}, method {job.method}: it has {epochs} epochs{f' after {before}' * bool(before)} "
            f"and every method has {study.epochs}{' in all' * bool(before)}"
        )
    if recipe.budget and recipe.budget.allocate == "snl":
        raise RecipeError(
            f'the study {study.name}, method {job.method}: budget.allocate = "snl" trains for epochs that no other '
            "method has: run deepshare plan --allocate snl --run DIR first, and give DIR/snl/counts.json"
        )
    return recipe


def starts_from_teacher(study: Study, recipe: Recipe) -> bool:
    """Whether a method of a study goes on from the trained plain network."""
    return recipe.method.initial == "plain" or (recipe.method.name == "relu" and not study.count_start)


def own_epochs(study: Study, job: Job) -> int:
    """The epochs that a method has beside those of the teacher that it starts from, if they are counted."""
    return study.epochs - _counted(study, recipe_of(study, job), recipe_of(study, Job(TEACHER, job.data)))


def _counted(study: Study, recipe: Recipe, teacher: Recipe) -> int:
    counted = study.count_start and starts_from_teacher(study, recipe)
    return teacher.phases["plain"].epochs if counted else 0


def taught(recipe: Recipe, teacher: Path, gelu: Path | None = None) -> Recipe:
    """Put the trained teachers into the recipe of a method: to learn from, to start from, or both."""
    if recipe.method.name == "relu":
        return changed(recipe, {"model.weights": str(teacher)})
    given = {"plain.weights": str(teacher)} if recipe.needs_plain else {}
    if recipe.needs_teacher and gelu:
        given["teacher.weights"] = str(gelu)
    return changed(recipe, given) if given else recipe


def checksum(recipe: Recipe) -> str:
    """What decides the result of a run, as 16 digits: keys that have their default do not count, nor do paths."""
    decisive = recipe.model_dump(mode="json", exclude_defaults=True, exclude=set(WORDS))
    # The first results were written when model.num_classes was called model.classes.
    values = {key.replace("model.num_", "model."): value for key, value in flat(decisive) if not is_path(key)}
    values.pop("method.start", None)
    if recipe.method.name in SHARING and recipe.start != "uniform":  # once the default, which does not count
        values["method.start"] = recipe.start
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def is_path(key: str) -> bool:
    """Whether a key of a recipe says where a file is."""
    return key.endswith(".weights")
