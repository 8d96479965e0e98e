"""What a study may say: its methods, budgets and passes."""

from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from deepshare.training.sections import Positive, Section

TEACHER = "teacher"


@dataclass(frozen=True)
class Job:
    """One run of a study.

    Attributes:
        method: Its name in the study, or `TEACHER`.
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
        note: What readers of the table should know.
        paper: Its name in the paper's tables that compare.
        ablation: Its row in the paper's table of ablations.
        drawn: Whether it is in the plot.
    """

    title: str
    like: str | None = None
    recipe: dict[str, Any]
    at: dict[str, dict[str, Any]] = Field(default_factory=dict)
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
    of its own as any other.

    Attributes:
        name: Of the study.
        about: What it is, for its page.
        base: The packaged recipe of a plain network that all others are made from.
        recipe: What the study changes in it; the result is the teacher's.
        epochs: Of every method.
        engine: Whose cost of private inference is predicted.
        published: What the paper has beside it.
        data: Images to train on, by name.
        methods: Methods, by name.
        passes: What is run, in order.
    """

    name: str
    about: str
    base: str
    recipe: dict[str, Any] = Field(default_factory=dict)
    epochs: Positive
    engine: str
    published: Published | None = None
    data: dict[str, Images]
    methods: dict[str, Entry]
    passes: tuple[Pass, ...] = Field(strict=False)

    @model_validator(mode="after")
    def _known(self) -> Self:
        if TEACHER in self.methods:
            raise ValueError(f"methods.{TEACHER}: every study has a teacher of its own: give the method another name")
        missing = [entry.like for entry in self.methods.values() if entry.like and entry.like not in self.methods]
        if missing:
            raise ValueError(f"methods: one is like {missing[0]}, which is not there")
        for part in self.passes:
            data = [part.data, *([part.choose.data] if part.choose else [])]
            unknown = [f"data.{name}" for name in data if name not in self.data]
            unknown += [f"methods.{name}" for name in part.methods if name not in self.methods]
            if unknown:
                raise ValueError(f'passes: "{part.about}" needs {unknown[0]}, which is not there')
        return self

    def title(self, method: str) -> str:
        """What tables call a method."""
        return "the teacher" if method == TEACHER else self.methods[method].title

    def changes(self, method: str) -> list[dict[str, Any]]:
        """What a method changes in the recipe, one after the other."""
        entry = self.methods[method]
        return [*(self.changes(entry.like) if entry.like else []), entry.recipe]

    def has_budget(self, method: str) -> bool:
        """Whether a method is told how many gates it may have; the plain network is not."""
        named = [part["method"]["name"] for part in self.changes(method) if "name" in part.get("method", {})]
        return bool(named) and named[-1] != "relu"

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
