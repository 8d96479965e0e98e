"""What private inference of a run's network costs: predicted for every engine, and measured where that was done.

What `deepshare private run RUN --json` prints is a measurement if it is kept as a file in the folder `private` of RUN.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from deepshare.errors import CheckpointError, UnsupportedModelError
from deepshare.files import write_atomically
from deepshare.private.cost import Cost, Layer, predict
from deepshare.private.formatting import cost_dict
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import Part, engine_names, find_engine
from deepshare.training.build import build
from deepshare.training.recipe.files import Recipe

T = TypeVar("T")
# Whose cost is shown layer by layer.
ENGINE = "crypten"


@dataclass(frozen=True)
class Predicted:
    """What one image costs.

    Attributes:
        costs: By engine; why not, for an engine that refuses the network.
        plain: The same for the plain network of the recipe, with all its ReLUs; nothing for a plain run.
        offline: Of each layer in the costs of `ENGINE`, its part of the bytes that are sent beforehand.
        elements: Of each of these layers, how many numbers it gives.
    """

    costs: Mapping[str, Cost | str]
    plain: Mapping[str, Cost | str]
    offline: tuple[int, ...]
    elements: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        costs, plain = (
            {name: cost if isinstance(cost, str) else cost_dict(cost) for name, cost in found.items()}
            for found in (self.costs, self.plain)
        )
        return {"images": 1, "costs": costs, "plain": plain, "offline_bytes_by_layer": {ENGINE: list(self.offline)}}


def foresee(network: nn.Module, recipe: Recipe, input_size: tuple[int, ...]) -> Predicted:
    """Predict the cost of one image for every engine, installed or not, for a network and for the plain one.

    Raises:
        UnsupportedModelError: The network does something that private inference does not know.
    """
    program = translate(network, input_size)
    plain = {} if recipe.method.name == "relu" else _costs(translate(_plain(recipe), input_size))
    elements = tuple(operation.elements for operation in program.operations)
    return Predicted(_costs(program), plain, _offline_by_layer(program), elements)


def _plain(recipe: Recipe) -> nn.Module:
    return build(recipe.model)


def _costs(program: Program) -> dict[str, Cost | str]:
    return {name: or_reason(partial(predict, program, program.input_size, name)) for name in engine_names()}


def _offline_by_layer(program: Program) -> tuple[int, ...]:
    """What each operation adds to the bytes of those before it."""
    engine = find_engine(ENGINE)
    whole = [
        sent(engine.predict(Program(program.operations[:end]), 1, {})[1])
        for end in range(1, len(program.operations) + 1)
    ]
    return tuple(after - before for before, after in zip([0, *whole], whole, strict=False))


def sent(part: Part) -> int:
    """All bytes, whoever sent them."""
    return part.server_bytes + part.client_bytes + part.dealer_bytes


def or_reason(make: Callable[[], T]) -> T | str:
    """What can be made, or why it cannot be made of this network."""
    try:
        return make()
    except UnsupportedModelError as error:
        return str(error)


def keep_measured(folder: Path, cost: Cost) -> Path:
    """Keep a measurement in a run folder, under the name of its engine; gives the file."""
    (folder / "private").mkdir(exist_ok=True)
    path = folder / "private" / f"{cost.engine}.json"
    write_atomically(path, (json.dumps({"cost": cost_dict(cost)}) + "\n").encode())
    return path


def read_measured(folder: Path) -> dict[str, Cost]:
    """Read the measurements in a run folder, by the name of their file.

    Raises:
        CheckpointError: A file is no measurement.
    """
    return {path.stem: _read(path) for path in sorted((folder / "private").glob("*.json"))}


def _read(path: Path) -> Cost:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))["cost"]
        layers = tuple(Layer(str(entry["name"]), str(entry["kind"]), _part(entry)) for entry in content["layers"])
        error, images = content["error"], int(content["images"])
        if images < 1:
            raise ValueError("no image")
        return Cost(
            str(content["engine"]),
            images,
            layers,
            _part(content["offline"]),
            _part(content["session"]),
            float(content["seconds"]),
            None if error is None else float(error),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is no measured cost: write what `deepshare private run --json` prints, or take it away"
        ) from error


def _part(entry: Mapping[str, Any]) -> Part:
    return Part(**{name: type(value)(entry[name]) for name, value in vars(Part()).items()})
