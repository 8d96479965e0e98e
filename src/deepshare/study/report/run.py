"""A finished run as the report shows it: all its numbers, read from the run folder."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from torch import Tensor

from deepshare.errors import CheckpointError, DataError
from deepshare.private.cost import Cost, cost_dict
from deepshare.sharing.plan import Plan
from deepshare.study import affine
from deepshare.study.affine import NetworkAffine
from deepshare.study.report.private_cost import Predicted, or_reason, predict_costs, read_measured
from deepshare.study.samples import Examples, Samples, open_images, predict_samples
from deepshare.training.build import load
from deepshare.training.recipe.files import Recipe, load_recipe
from deepshare.training.run.checkpoint import read_weights
from deepshare.training.run.folder import RunFolder

T = TypeVar("T")
# Networks that a run trains first, in folders of their own.
ON_THE_WAY = ("teacher", "plain", "snl", "pilot")
OWN_MODEL = "It was trained from a model of your own, which a run folder does not hold."
OWN_DATA = "It was trained on data of your own, which a run folder does not hold."
NOT_SHARED = "Its gates are not shared, so there is no alpha and beta."


@dataclass(frozen=True)
class Strand:
    """Training of one network: its name (empty for the result) and its metrics, one record per epoch."""

    network: str
    lines: tuple[dict[str, Any], ...]


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run. Where a part is not available, a string holds the reason.

    Attributes:
        name: Run folder or name of a network, as given.
        recipe: Its recipe.
        result: Its final figures.
        environment: Hardware and software it ran on.
        date: Date on which it finished; None for a run that did not record it.
        strands: Epochs of all its networks, the result last.
        plan: Plan of its shared gates; None if they are not shared.
        pi: Prototype of each channel, by site, where it was learned.
        affine: Its alpha and beta.
        predicted: Predicted cost of private inference.
        measured: Measured costs, by name of the measurement.
        samples: Sample predictions on test images.
    """

    name: str
    recipe: Recipe
    result: dict[str, Any]
    environment: dict[str, Any]
    date: str | None
    strands: tuple[Strand, ...]
    plan: Plan | None
    pi: dict[str, list[int]]
    affine: NetworkAffine | str
    predicted: Predicted | str
    measured: dict[str, Cost]
    samples: Samples | str

    @property
    def gates(self) -> int:
        """Comparisons per image."""
        return int(self.result["gates"])

    @property
    def neurons(self) -> int:
        """ReLUs of the plain network."""
        return int(self.result["neurons"])

    @property
    def measure(self) -> Literal["accuracy", "miou"]:
        """Kind of the score."""
        return "miou" if "val_miou" in self.strands[-1].lines[-1] else "accuracy"

    @property
    def test(self) -> dict[str, Any] | None:
        """Figures of the last weights on the test images; None if there are no test images."""
        figures: dict[str, Any] | None = self.result["test"]["last"]
        return figures

    @property
    def validation(self) -> float:
        """Score on the validation images after the last epoch."""
        return float(self.strands[-1].lines[-1][f"val_{self.measure}"])

    @property
    def score(self) -> float:
        """Score on the test images, or on the validation images if there are none."""
        return float(self.test[self.measure]) if self.test else self.validation

    @property
    def epochs(self) -> int:
        """Number of epochs of all its networks."""
        return sum(len(strand.lines) for strand in self.strands)

    @property
    def elsewhere(self) -> list[str]:
        """Networks that the recipe needs but this run did not train, such as a given teacher."""
        trained = {strand.network for strand in self.strands} | {line["phase"] for line in self.strands[-1].lines}
        return [name for name in ON_THE_WAY if name in self.recipe.phases and name not in trained]

    def to_dict(self) -> dict[str, Any]:
        """Convert all numbers of the report to a dict for JSON; a string gives the reason for a missing part."""
        return {
            "run": self.name,
            "recipe": self.recipe.model_dump(mode="json", exclude_none=True),
            "measure": self.measure,
            "score": self.score,
            "tested": self.test is not None,
            "validation": self.validation,
            "gates": self.gates,
            "neurons": self.neurons,
            "seconds": self.result["seconds"],
            "date": self.date,
            "curves": [{"network": strand.network or "result", "epochs": strand.lines} for strand in self.strands],
            "plan": json.loads(self.plan.to_json()) if self.plan else None,
            "affine": _dict_or_reason(self.affine),
            "predicted": _dict_or_reason(self.predicted),
            "measured": {name: cost_dict(cost) for name, cost in self.measured.items()},
            "samples": _dict_or_reason(self.samples),
        }


def short_names(runs: Sequence[Run]) -> list[str]:
    """Names of networks or run folders, or the full paths if two names are equal."""
    short = [Path(run.name).resolve().name for run in runs]
    return short if len(set(short)) == len(runs) else [run.name for run in runs]


def _dict_or_reason(part: NetworkAffine | Predicted | Samples | str) -> dict[str, Any] | str:
    return part if isinstance(part, str) else part.to_dict()


def find_images(path: Path, data_dir: Path | None) -> Examples | str:
    """Open the test images of a run, or return the reason why there are none.

    Raises:
        DataError: They are not in the given folder.
    """
    if not RunFolder(path).images.is_file():
        return OWN_DATA
    recipe = load_recipe(RunFolder(path).recipe)
    try:
        return open_images(recipe, data_dir)
    except DataError:
        if data_dir is not None:
            raise
        return f"The test images of {recipe.data.name} are not here: give the folder that holds them with --data-dir."


def read(path: Path, images: Examples | str, name: str | None = None) -> Run:
    """Read a finished run.

    Args:
        path: The run folder; see `check_run`.
        images: Its test images, or the reason why there are none.
        name: Name of the run on the page; by default the folder.

    Raises:
        CheckpointError: A file is missing or damaged.
    """
    folder = RunFolder(path)
    recipe = load_recipe(folder.recipe)
    tensors, label = read_weights(folder.model)
    plan = Plan.load(folder.plan) if folder.plan.is_file() else None
    result = _json(folder.result, json.loads)
    base = (
        name or str(path),
        recipe,
        {"neurons": plan.neurons if plan else result["gates"], **result},
        _json(folder.environment, json.loads),
        result.get("date"),
        _strands(path),
        plan,
        _learned_pi(plan, tensors),
    )
    measured = read_measured(path)
    if label.own:
        return Run(*base, OWN_MODEL, OWN_MODEL, measured, OWN_MODEL)
    network = load(path)
    pairs = or_reason(lambda: affine.read(network, name=str(path), gates=result["gates"])) if plan else NOT_SHARED
    predicted = or_reason(lambda: predict_costs(network, recipe, label.input_size))
    return Run(
        *base, pairs, predicted, measured, images if isinstance(images, str) else predict_samples(network, images)
    )


def _learned_pi(plan: Plan | None, tensors: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """Learned prototypes by site name; some sites have a wrapper in the state dict."""
    if plan is None or plan.mapping != "learned":
        return {}
    ends = (".pi", ".activation.pi")
    keys = {site.name: f"{site.name}{end}" for site in plan.sites for end in ends if f"{site.name}{end}" in tensors}
    return {name: tensors[key].tolist() for name, key in keys.items()}


def _strands(path: Path) -> tuple[Strand, ...]:
    names = [name for name in ON_THE_WAY if RunFolder(path / name).metrics.is_file()]
    folders = [(name, RunFolder(path / name)) for name in names] + [("", RunFolder(path))]
    return tuple(Strand(name, _json(folder.metrics, _lines)) for name, folder in folders)


def _lines(content: str) -> tuple[dict[str, Any], ...]:
    lines = tuple(json.loads(line) for line in content.splitlines())
    if not lines:
        raise ValueError("no epoch")
    return lines


def _json(path: Path, parse: Callable[[str], T]) -> T:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is missing or damaged: restore it from the machine that trained it") from error
