"""What a study may say: its methods, budgets and passes."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from deepshare.training.recipe.files import flat
from deepshare.training.recipe.sections import Positive, Section

TEACHER = "teacher"
GELU_TEACHER = "gelu-teacher"
TEACHERS = (TEACHER, GELU_TEACHER)
# What a method may not change: images, split, teacher and what it starts from are the same for all methods; budgets and
# seeds come from the passes.
COMMON = ("data.", "teacher.", "distillation.teacher", "plain.weights", "model.weights", "seed", "budget.gates")


@dataclass(frozen=True)
class Job:
    """One run of a study.

    Attributes:
        method: Its name in the study, or one of `TEACHERS`.
        data: The name of the images that it is trained on.
        budget: Gates; None for a network with all its ReLUs.
        seed: Of everything random but the split of the images.
    """

    method: str
    data: str
    budget: int | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        """What its files are called.

        >>> Job("snl", "subset", 1536, 2).name
        'subset-snl-1536-seed2'
        """
        budget = "" if self.budget is None else f"-{self.budget}"
        return f"{self.data}-{self.method}{budget}-seed{self.seed}"


class Entry(Section):
    """A method of a study.

    Attributes:
        title: What tables call it.
        like: Another method, whose recipe its own changes.
        recipe: What it changes in the study's recipe, written as in a recipe file.
        at: What it changes further at a budget, such as the width of its network.
        on: What it changes further on some images, such as a rate where an epoch has more steps.
        note: What readers of the table should know.
        paper: Its name in the paper's tables that compare.
        ablation: Its row in the paper's table of ablations.
        drawn: Whether it is in the plot.
    """

    title: str
    like: str | None = None
    recipe: dict[str, Any]
    at: dict[str, dict[str, Any]] = Field(default_factory=dict)
    on: dict[str, dict[str, Any]] = Field(default_factory=dict)
    note: str | None = None
    paper: str | None = None
    ablation: str | None = None
    drawn: bool = True


class Images(Section):
    """Images to train on: what they change in the recipe, and the minutes of a run as long as none is known."""

    title: str
    minutes: Positive
    recipe: dict[str, Any] = Field(default_factory=dict)


class Choice(Section):
    """Which methods of a pass are run at a budget, by the validation accuracy of their runs with seed 0.

    Attributes:
        by: The best ones, or the neighbours in rank that are closest to each other.
        count: How many methods, or how many pairs.
        data: The images of the runs that decide.
    """

    by: Literal["leaders", "closest"]
    count: Positive
    data: str


class Pass(Section):
    """Runs that belong together: all methods at all budgets with all seeds, or those that are chosen."""

    about: str
    data: str
    methods: tuple[str, ...] = Field(strict=False)
    budgets: tuple[Positive, ...] = Field(strict=False)
    seeds: tuple[int, ...] = Field((0,), strict=False)
    choose: Choice | None = None


class Published(Section):
    """The paper's table beside ours, and the budget at which our ablations stand beside the paper's."""

    network: str
    data: str
    ablations_at: Positive


class Study(Section):
    """What is compared.

    Every run has the same network and images, the same teacher, which a method may also start from, and as many epochs
    of its own as any other. Where [recipe] has a [teacher] with epochs, there is a second one with GELUs, trained once,
    for the methods that set distillation.teacher = "gelu".

    Attributes:
        name: Of the study.
        source: How it was asked for: its name, or its file.
        about: What it is, for its page.
        base: The packaged recipe of a plain network that all others are made from.
        recipe: What the study changes in it; the result is the teacher's.
        epochs: Of every method.
        count_start: Whether they include the teacher's, for a method that starts from it; others start from scratch,
            the plain network with them.
        engine: Whose cost of private inference is predicted.
        published: What the paper has beside it.
        data: Images to train on, by name.
        methods: Methods, by name.
        passes: What is run, in order.
    """

    name: str
    source: str
    about: str
    base: str
    recipe: dict[str, Any] = Field(default_factory=dict)
    epochs: Positive
    count_start: bool = False
    engine: str
    published: Published | None = None
    data: dict[str, Images]
    methods: dict[str, Entry]
    passes: tuple[Pass, ...] = Field(strict=False)

    @model_validator(mode="after")
    def _known(self) -> Self:
        if taken := [name for name in TEACHERS if name in self.methods]:
            raise ValueError(f"methods.{taken[0]}: every study has a teacher of its own: give the method another name")
        if odd := [name for name in (*self.methods, *self.data) if not re.fullmatch(r"[\w.-]+", name)]:
            raise ValueError(f'"{odd[0]}" is a name of files, too: give letters, digits, dots, hyphens and underscores')
        missing = [e.like for e in self.methods.values() if e.like is not None and e.like not in self.methods]
        if missing:
            raise ValueError(f'methods: one is like "{missing[0]}", which is not there')
        if circle := [name for name in self.methods if self._is_circle(name)]:
            raise ValueError(f"methods.{circle[0]}: it is like itself in the end: let it be like another")
        for part in self.passes:
            data = [part.data, *([part.choose.data] if part.choose else [])]
            unknown = [f"data.{name}" for name in data if name not in self.data]
            unknown += [f"methods.{name}" for name in part.methods if name not in self.methods]
            if unknown:
                raise ValueError(f'passes: "{part.about}" needs {unknown[0]}, which is not there')
        for name in self.methods:
            if wrong := next(self._wrong_keys(name), None):
                raise ValueError(f"methods.{name}.{wrong}")
        every = dict.fromkeys(job for part in self.passes for job in self.jobs_of(part))
        named = Counter(job.name for job in every)
        if twice := [name for name, count in named.items() if count > 1]:
            raise ValueError(f"methods: two runs would be called {twice[0]}: give one of their methods another name")
        return self

    def _is_circle(self, method: str) -> bool:
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
        """The training of the plain network is the teacher's, save where it is the method itself."""
        plain = key.startswith("plain.") and not key.startswith("plain.model") and self.has_budget(method)
        chosen = key == "distillation.teacher" and bool(dict(flat(self.recipe)).get("teacher.epochs"))
        return plain or (key.startswith(COMMON) and not chosen)

    def title(self, method: str) -> str:
        """What tables call a method."""
        titles = {TEACHER: "the teacher", GELU_TEACHER: "the teacher with GELUs"}
        return titles.get(method) or self.methods[method].title

    def changes(self, method: str) -> list[dict[str, Any]]:
        """What a method changes in the recipe, one after the other."""
        entry = self.methods[method]
        return [*(self.changes(entry.like) if entry.like else []), entry.recipe]

    def teachers_of(self, job: Job) -> list[Job]:
        """The runs that a run waits for; none for a teacher."""
        if job.method in TEACHERS:
            return []
        parts = [self.recipe, self.data[job.data].recipe, *self.changes(job.method)]
        said = {key: value for part in parts for key, value in flat(part)}
        names = TEACHERS if said.get("distillation.teacher") == "gelu" else (TEACHER,)
        return [Job(name, job.data) for name in names]

    def has_budget(self, method: str) -> bool:
        """Whether a method is told how many gates it may have; the plain network is not."""
        changed = {key: value for part in self.changes(method) for key, value in flat(part)}
        return changed.get("method.name", "relu") != "relu"

    def jobs_of(self, part: Pass) -> list[Job]:
        """All runs that a pass may have, seed by seed and budget by budget."""
        return list(
            dict.fromkeys(
                Job(method, part.data, budget if self.has_budget(method) else None, seed)
                for seed in part.seeds
                for budget in part.budgets
                for method in part.methods
            )
        )
