"""Study files: methods, budgets and passes of a comparison, and the recipe of each run."""

import hashlib
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from deepshare.errors import RecipeError
from deepshare.methods import base as methods
from deepshare.text import nearest
from deepshare.training.recipe.files import Recipe, changed, flat, load_recipe
from deepshare.training.recipe.files import names as recipe_names
from deepshare.training.recipe.schema import RESULT_PHASES, Positive, Section

TEACHER = "teacher"
GELU_TEACHER = "gelu-teacher"
TEACHERS = (TEACHER, GELU_TEACHER)
# Keys that a method may not change: images, split, teacher and initial weights are common to all methods, and budgets
# and seeds come from the passes.
COMMON = ("data.", "teacher.", "distillation.teacher", "plain.weights", "model.weights", "seed", "budget.gates")
SPLIT = 0  # seed of validation split and subset, common to runs of all seeds
WORDS = ("name", "about", "paper")  # keys of a recipe without influence on the result

_FOLDER = resources.files("deepshare.study.compare") / "studies"


@dataclass(frozen=True)
class Job:
    """One run of a study.

    Attributes:
        method: Name of the method in the study, or one of `TEACHERS`.
        data: Name of the training images in the study.
        budget: Number of gates; None for a network with all its ReLUs.
        seed: Seed of everything random except the split of the images.
    """

    method: str
    data: str
    budget: int | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        """Base name of its files.

        >>> Job("snl", "subset", 1536, 2).name
        'subset-snl-1536-seed2'
        """
        budget = "" if self.budget is None else f"-{self.budget}"
        return f"{self.data}-{self.method}{budget}-seed{self.seed}"


class StudyMethod(Section):
    """A method of a study.

    Attributes:
        title: Name in tables.
        like: Another method to derive the recipe from.
        recipe: Changes to the study's recipe, or to that of `like`, written as in a recipe file.
        at: Further changes at a budget, such as the width of the network.
        on: Further changes on some images, such as a learning rate for longer epochs.
        note: Remark below the table.
        tried: Settings that were tried before these, and how far they came on validation images.
        paper: Name of the method in the paper's tables.
        ablation: Name of its row in the paper's table of ablations.
        drawn: Whether the plot includes it.
        kept: Whether the networks of its runs are kept among the results.
    """

    title: str
    like: str | None = None
    recipe: dict[str, Any]
    at: dict[str, dict[str, Any]] = Field(default_factory=dict)
    on: dict[str, dict[str, Any]] = Field(default_factory=dict)
    note: str | None = None
    tried: str | None = None
    paper: str | None = None
    ablation: str | None = None
    drawn: bool = True
    kept: bool = False


class TrainingImages(Section):
    """Images to train on: their changes to the recipe, and the estimated minutes of a run until one has finished."""

    title: str
    minutes: Positive
    recipe: dict[str, Any] = Field(default_factory=dict)


class Selection(Section):
    """Selection of the methods of a pass per budget, by the validation accuracy of their runs with seed 0.

    Attributes:
        by: Select the best methods, or the pairs of neighbours in rank that are closest to each other.
        count: Number of methods, or of pairs.
        data: Images of the runs that decide.
    """

    by: Literal["leaders", "closest"]
    count: Positive
    data: str


class Pass(Section):
    """Group of runs: all its methods at all budgets with all seeds, or those selected."""

    about: str
    data: str
    methods: tuple[str, ...] = Field(strict=False)
    budgets: tuple[Annotated[int, Field(ge=0)], ...] = Field(strict=False)
    seeds: tuple[int, ...] = Field((0,), strict=False)
    choose: Selection | None = None


class PaperReference(Section):
    """Table of the paper to compare with.

    Attributes:
        network: Its network, by the name in recipes.
        data: Its data set, by the name in recipes.
        ablations_at: Budget of the ablations here.
        like: Gates of the paper that a budget of the study corresponds to, where shares of the ReLUs do not tell.
    """

    network: str
    data: str
    ablations_at: Positive
    like: dict[str, Positive] = Field(default_factory=dict)


class Question(Section):
    """A difference in accuracy that a study is for.

    Attributes:
        about: The question.
        first: Method whose accuracy counts positive.
        second: Method whose accuracy is subtracted.
        at: Budget of both.
        second_at: Budget of the second, if it has another.
        paper: The difference in the paper.
    """

    about: str
    first: str
    second: str
    at: Annotated[int, Field(ge=0)]
    second_at: Annotated[int, Field(ge=0)] | None = None
    paper: float | None = None


class Study(Section):
    """A comparison of methods.

    All runs have the same network and images, the same number of epochs and the same teacher, which a method may also
    start from. If [recipe] has a [teacher] with epochs, there is a second teacher, a network with GELUs that is trained
    once for all methods that set distillation.teacher = "gelu".

    Attributes:
        name: Name of the study.
        source: Name or file by which it was loaded.
        about: Description, for its page.
        base: Packaged recipe of a plain network from which all other recipes are derived.
        recipe: Changes of the study to it; the result is the teacher's recipe.
        epochs: Epochs of every method.
        count_start: Whether `epochs` include those of the teacher for a method that starts from it; all other methods,
            and the plain network, start from scratch.
        engine: Engine whose cost of private inference is predicted.
        published: Table of the paper to compare with.
        ablations: Another study with the ablations; its results are in the folder beside this one's.
        questions: Differences that it is for, which its page answers first.
        data: Images to train on, by name.
        methods: Methods, by name.
        passes: Groups of runs, in order.
    """

    name: str
    source: str
    about: str
    base: str
    recipe: dict[str, Any] = Field(default_factory=dict)
    epochs: Positive
    count_start: bool = False
    engine: str
    published: PaperReference | None = None
    ablations: str | None = None
    questions: tuple[Question, ...] = Field((), strict=False)
    data: dict[str, TrainingImages]
    methods: dict[str, StudyMethod]
    passes: tuple[Pass, ...] = Field(strict=False)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if taken := [name for name in TEACHERS if name in self.methods]:
            raise ValueError(f"methods.{taken[0]}: every study has a teacher of its own: give the method another name")
        if odd := [name for name in (*self.methods, *self.data) if not re.fullmatch(r"[\w.-]+", name)]:
            raise ValueError(f'"{odd[0]}" is part of file names: use letters, digits, dots, hyphens and underscores')
        missing = [e.like for e in self.methods.values() if e.like is not None and e.like not in self.methods]
        if missing:
            raise ValueError(f'methods: like = "{missing[0]}": there is no such method')
        if circle := [name for name in self.methods if self._is_circular(name)]:
            raise ValueError(f"methods.{circle[0]}: its like leads back to itself: give another method")
        for part in self.passes:
            data = [part.data, *([part.choose.data] if part.choose else [])]
            unknown = [f"data.{name}" for name in data if name not in self.data]
            unknown += [f"methods.{name}" for name in part.methods if name not in self.methods]
            if unknown:
                raise ValueError(f'passes: "{part.about}" needs {unknown[0]}, which the study does not have')
        for question in self.questions:
            if lost := [name for name in (question.first, question.second) if name not in self.methods]:
                raise ValueError(
                    f'questions: "{question.about}" needs methods.{lost[0]}, which the study does not have'
                )
        for name in self.methods:
            if wrong := next(self._wrong_keys(name), None):
                raise ValueError(f"methods.{name}.{wrong}")
        every = dict.fromkeys(job for part in self.passes for job in self.jobs_of(part))
        named = Counter(job.name for job in every)
        if twice := [name for name, count in named.items() if count > 1]:
            raise ValueError(f"methods: two runs would be called {twice[0]}: give one of their methods another name")
        return self

    def _is_circular(self, method: str) -> bool:
        name = self.methods[method].like
        for _ in self.methods:
            if name is None or name == method:
                break
            name = self.methods[name].like
        return name == method

    def _wrong_keys(self, method: str) -> Iterator[str]:
        entry = self.methods[method]
        runs = {job.budget for part in self.passes for job in self.jobs_of(part) if job.method == method}
        budgets = [str(budget) for budget in sorted(budget for budget in runs if budget is not None)]
        for budget in entry.at:
            if budget not in budgets:
                yield f"at.{budget}: its runs have {', '.join(budgets) or 'no budget'}"
        for data in entry.on:
            if data not in self.data:
                yield f"on.{data}: there are {', '.join(self.data)}"
        parts = {"recipe": entry.recipe}
        parts |= {f"{where}.{name}": part for where in ("at", "on") for name, part in getattr(entry, where).items()}
        for where, key in ((where, key) for where, part in parts.items() for key, _ in flat(part)):
            if self._is_common(method, key):
                yield f"{where}: {key} is the same for all methods: put it into [recipe] or [data.NAME]"

    def _is_common(self, method: str, key: str) -> bool:
        """Return True if all methods have a key in common: also one of the plain network, unless that is the method."""
        plain = key.startswith("plain.") and not key.startswith("plain.model") and self.has_budget(method)
        chosen = key == "distillation.teacher" and bool(dict(flat(self.recipe)).get("teacher.epochs"))
        return plain or (key.startswith(COMMON) and not chosen)

    def title(self, method: str) -> str:
        """Name of a method in tables."""
        titles = {TEACHER: "the teacher", GELU_TEACHER: "the teacher with GELUs"}
        return titles.get(method) or self.methods[method].title

    def changes(self, method: str) -> list[dict[str, Any]]:
        """Changes of a method to the recipe, in the order in which they apply."""
        entry = self.methods[method]
        return [*(self.changes(entry.like) if entry.like else []), entry.recipe]

    def teachers_of(self, job: Job) -> list[Job]:
        """Runs of the teachers that a run depends on; none for a teacher."""
        if job.method in TEACHERS:
            return []
        parts = [self.recipe, self.data[job.data].recipe, *self.changes(job.method)]
        said = {key: value for part in parts for key, value in flat(part)}
        teacher, gelus = (Job(name, job.data) for name in TEACHERS)
        if said.get("distillation.teacher") != "gelu":
            return [teacher]
        return [teacher, gelus] if recipe_of(self, job).needs_plain else [gelus]

    def has_budget(self, method: str) -> bool:
        """Return True if a method has a gate budget; the plain network has none."""
        changed = {key: value for part in self.changes(method) for key, value in flat(part)}
        name = changed.get("method.name")
        return name is not None and name not in methods.names(lambda kind: kind.kind == "plain")

    def jobs_of(self, part: Pass) -> list[Job]:
        """All runs that a pass may have, ordered by seed, then by budget."""
        return list(
            dict.fromkeys(
                Job(method, part.data, budget if self.has_budget(method) else None, seed)
                for seed in part.seeds
                for budget in part.budgets
                for method in part.methods
            )
        )


def names() -> list[str]:
    """Names of the packaged studies."""
    return sorted(file.name.removesuffix(".toml") for file in _FOLDER.iterdir() if file.name.endswith(".toml"))


def load_study(name_or_path: str) -> Study:
    """Read a study and check the recipes of all its runs.

    Args:
        name_or_path: A packaged name or a TOML file.

    Raises:
        RecipeError: There is no such study, or a key or value is wrong.
    """
    file = _locate(name_or_path)
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
        study = Study.model_validate({"name": file.name.removesuffix(".toml"), **values, "source": name_or_path})
        if study.base not in recipe_names():
            raise RecipeError(
                f'the study {study.name}: base = "{study.base}" is no recipe of the package: '
                f"put the differences from one into [recipe]{nearest(study.base, recipe_names())}"
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
    """Build the recipe of a run, without the weights of its teachers.

    Raises:
        RecipeError: A key or value is wrong, or the epochs differ from the study's.
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
    # Max-pooling has no weights, so that a network with another kind of it can start from the teacher, too.
    plain = recipe.model_of("plain").model_copy(update={"maxpool": teacher.model.maxpool})
    if (recipe.needs_plain or recipe.is_plain) and plain != teacher.model:
        raise RecipeError(
            f"the study {study.name}, method {job.method}: its network is not the teacher's, which it starts or learns "
            "from: give the teacher's as plain.model, or none of its own"
        )
    trained = ("plain",) if recipe.is_plain else RESULT_PHASES
    epochs = sum(phase.epochs for name, phase in recipe.phases.items() if name in trained)
    before = _counted(study, recipe, teacher)
    if epochs + before != study.epochs:
        raise RecipeError(
            f"the study {study.name}, method {job.method}: it has {epochs} epochs{f' after {before}' * bool(before)} "
            f"and every method has {study.epochs}{' in all' * bool(before)}"
        )
    if recipe.budget and recipe.budget.allocation.phases(recipe):
        name = recipe.budget.allocate
        raise RecipeError(
            f'the study {study.name}, method {job.method}: budget.allocate = "{name}" trains for epochs that no other '
            f"method has: run deepshare plan --allocate {name} --run DIR first, and give DIR/{name}/counts.json"
        )
    return recipe


def starts_from_teacher(study: Study, recipe: Recipe) -> bool:
    """Return True if a method starts from the trained plain network."""
    return recipe.method.initial == "plain" or (recipe.is_plain and not study.count_start)


def own_epochs(study: Study, job: Job) -> int:
    """Epochs of a method itself, without the counted epochs of the teacher that it starts from."""
    return study.epochs - start_epochs(study, job) * study.count_start


def start_epochs(study: Study, job: Job) -> int:
    """Epochs of the trained teacher that a run starts from; 0 from scratch."""
    if job.method in TEACHERS or not starts_from_teacher(study, recipe_of(study, job)):
        return 0
    return recipe_of(study, Job(TEACHER, job.data)).phases["plain"].epochs


def _counted(study: Study, recipe: Recipe, teacher: Recipe) -> int:
    counted = study.count_start and starts_from_teacher(study, recipe)
    return teacher.phases["plain"].epochs if counted else 0


def taught(recipe: Recipe, teacher: Path | None, gelu: Path | None = None) -> Recipe:
    """Set the weights of the trained teachers in a recipe, to distill from, to start from, or both."""
    if recipe.is_plain:
        return changed(recipe, {"model.weights": str(teacher)})
    given = {"plain.weights": str(teacher)} if recipe.needs_plain else {}
    if recipe.needs_teacher and gelu:
        given["teacher.weights"] = str(gelu)
    return changed(recipe, given) if given else recipe


def checksum(recipe: Recipe) -> str:
    """Checksum (16 digits) of all keys of a recipe that determine the result; defaults and paths are left out."""
    decisive = recipe.model_dump(mode="json", exclude_defaults=True, exclude=set(WORDS))
    # The first results were written when model.num_classes was called model.classes.
    values = {key.replace("model.num_", "model."): value for key, value in flat(decisive) if not is_path(key)}
    for key, value in recipe.resolved.items():
        values.pop(key, None)
        if value not in (None, "uniform"):  # once the default, which does not count
            values[key] = value
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def is_path(key: str) -> bool:
    """Return True if a key of a recipe is the path of a file."""
    return key.endswith(".weights")
