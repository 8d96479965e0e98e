"""The folder of one run, and what may be done with it."""

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from deepshare.data.images import About
from deepshare.errors import CheckpointError
from deepshare.sharing.plan import Plan
from deepshare.training.recipe.files import Recipe, differences, load_recipe, to_toml
from deepshare.training.run.checkpoint import ResumeState, write_file

# Keys that an error names when more have changed.
MOST_NAMED = 4

PACKAGES = ("deepshare", "torch", "lightning-fabric", "safetensors", "numpy", "kornia")


@dataclass(frozen=True)
class RunFolder:
    """The files of a run. Weights are there once it is finished; until then there is a state to go on from."""

    path: Path

    @property
    def model(self) -> Path:
        """Weights after the last epoch."""
        return self.path / "model.safetensors"

    @property
    def best(self) -> Path:
        """Weights after the epoch of the last phase that was best on the validation images."""
        return self.path / "best.safetensors"

    @property
    def soft(self) -> Path:
        """Weights at the end of the GELU phase, the teacher of what follows; gone when the run is finished."""
        return self.path / "gelu.safetensors"

    @property
    def state(self) -> Path:
        """What is needed to resume; gone when the run is finished."""
        return self.path / "state.pt"

    @property
    def plan(self) -> Path:
        """The plan, where gates are shared."""
        return self.path / "plan.json"

    @property
    def recipe(self) -> Path:
        """The recipe as resolved."""
        return self.path / "recipe.toml"

    @property
    def environment(self) -> Path:
        """What the run was begun on."""
        return self.path / "environment.json"

    @property
    def images(self) -> Path:
        """What its images are like, for those who have no data set; not there if the data was the user's own."""
        return self.path / "images.json"

    @property
    def metrics(self) -> Path:
        """One line for each epoch."""
        return self.path / "metrics.jsonl"

    @property
    def result(self) -> Path:
        """The figures on the test images, written last of all."""
        return self.path / "result.json"

    def check(self, recipe: Recipe, *, resume: bool, images: str | None = None) -> None:
        """See whether a run of a recipe may use the folder; nothing is touched.

        Args:
            recipe: The recipe.
            resume: Whether a run that was begun goes on.
            images: The checksum of the images that are there.

        Raises:
            CheckpointError: It holds something else, or a run that was not to be resumed.
        """
        if not self.path.exists() or not any(True for _ in self._visible()):
            return
        if not self.path.is_dir():
            raise CheckpointError(f"{self.path} is a file: give a folder")
        if not resume:
            held = "holds a finished run:" if self.result.is_file() else "is not empty: go on with it by --resume, or"
            raise CheckpointError(f"{self.path} {held} give another folder")
        if not self.recipe.is_file():
            raise CheckpointError(f"{self.path} is no run folder (it has no recipe.toml): give another folder")
        changed = differences(load_recipe(self.recipe), recipe)
        if changed:
            few = list(changed.items())[:MOST_NAMED]
            said = "; ".join(f"{key} was {old} and is {new}" for key, (old, new) in few)
            said += f"; and {len(changed) - len(few)} more" if len(changed) > len(few) else ""
            raise CheckpointError(
                f"{self.path} was begun with another recipe ({said}): resume with the old values or give another folder"
            )
        before = read_environment(self).get("images") if self.environment.exists() else None
        if images and before and before != images:
            raise CheckpointError(
                f"{self.path} was begun with other images than are there now: resume with those or give another folder"
            )

    def begin(self, recipe: Recipe, environment: Mapping[str, Any], plan: Plan | None, about: About | None) -> None:
        """Create the folder and write what is known from the start; a resumed run keeps what it has."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be made ({error.strerror}): give another folder") from error
        if not self.recipe.exists():
            write_file(self.recipe, to_toml(recipe).encode())
        if not self.environment.exists():
            write_file(self.environment, (json.dumps(environment, indent=1) + "\n").encode())
        if plan and not self.plan.exists():
            plan.save(self.plan)
        if about and not self.images.exists():
            write_file(self.images, (about.model_dump_json() + "\n").encode())
        ours = (self.model, self.best, self.soft, self.state, self.plan, self.recipe, self.metrics, self.result)
        for file in (*ours, self.environment, self.images):
            for leftover in self.path.glob(f".{file.name}.*"):  # temporary names of a run that was killed
                leftover.unlink()

    def read_state(self) -> ResumeState | None:
        """The state to go on from; None if no epoch has been saved yet."""
        return ResumeState.load(self.state) if self.state.exists() else None

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line to the record."""
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            reason = f"cannot be written ({error.strerror}): make room and resume"
            raise CheckpointError(f"{self.metrics} {reason}") from error

    def recorded(self, lines: int) -> list[bytes]:
        """The first lines of the record.

        Raises:
            CheckpointError: They are not all there.
        """
        there = self.metrics.read_bytes().splitlines()[:lines] if self.metrics.exists() else []
        whole = sum(1 for _ in takewhile(_is_json, there))
        if whole < lines:
            raise CheckpointError(
                f"{self.metrics} is damaged ({whole} lines of {lines} can be read): restore it from a copy of the run "
                "or train again in a new folder"
            )
        return there

    def truncate(self, lines: int) -> None:
        """Forget what was recorded after the state that is resumed."""
        if self.metrics.exists():
            write_file(self.metrics, b"".join(line + b"\n" for line in self.recorded(lines)))

    def lines(self) -> list[dict[str, Any]]:
        """The record.

        Raises:
            CheckpointError: It is missing or damaged.
        """
        try:
            return [json.loads(line) for line in self.metrics.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.metrics} is missing or damaged: restore it from a copy of the run") from error

    def read_result(self) -> dict[str, Any]:
        """The figures on the test images.

        Raises:
            CheckpointError: They are missing or damaged.
        """
        try:
            result = json.loads(self.result.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            result = None
        if not isinstance(result, dict) or not {"gates", "test", "seconds"} <= result.keys():
            cure = "delete it, and deepshare train --resume writes it again"
            raise CheckpointError(f"{self.result} is missing or damaged: {cure}")
        return result

    def clean(self) -> None:
        """Remove what only an unfinished run needs."""
        self.soft.unlink(missing_ok=True)
        self.state.unlink(missing_ok=True)

    def _visible(self) -> Iterator[Path]:
        if not self.path.is_dir():
            yield self.path
            return
        yield from (file for file in self.path.iterdir() if not file.name.startswith("."))


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def own_lines(run: RunFolder) -> list[dict[str, Any]]:
    """The record of all epochs that a result has had: those of its pilot, if there was one, and its own."""
    pilot = RunFolder(run.path / "pilot")
    return [*(pilot.lines() if pilot.metrics.exists() else []), *run.lines()]


def describe_environment(seed: int, hardware: Mapping[str, Any], images: str | None) -> dict[str, Any]:
    """What a run ran on; images by their checksum."""
    return {
        "command": sys.argv,
        "seed": seed,
        **hardware,
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "images": images,
    }


def read_environment(run: RunFolder) -> dict[str, Any]:
    """What a run ran on, as it was written down.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    try:
        return dict(json.loads(run.environment.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{run.environment} is missing or damaged: restore it from a copy of the run, or delete {run.path} and "
            "train again"
        ) from error


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()
