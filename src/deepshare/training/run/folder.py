"""The folder of a run: its files, its record of epochs and its environment."""

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
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
from deepshare.training.run import networks
from deepshare.training.run.checkpoint import ResumeState, write_file

# Keys that an error names when more have changed.
MOST_NAMED = 4

PACKAGES = ("deepshare", "torch", "lightning-fabric", "safetensors", "numpy", "kornia")


@dataclass(frozen=True)
class RunFolder:
    """Files of a run. A finished one has weights; an unfinished one has a state to resume from."""

    path: Path

    @property
    def model(self) -> Path:
        """Weights after the last epoch."""
        return self.path / "model.safetensors"

    @property
    def best(self) -> Path:
        """Weights with the best validation score of the last phase, among epochs with no more gates than in the end."""
        return self.path / "best.safetensors"

    @property
    def soft(self) -> Path:
        """Weights at the end of the GELU phase, the teacher of the following ones; removed at the end of the run."""
        return self.path / "gelu.safetensors"

    @property
    def state(self) -> Path:
        """State to resume from; removed at the end of the run."""
        return self.path / "state.pt"

    @property
    def plan(self) -> Path:
        """Plan, if gates are shared."""
        return self.path / "plan.json"

    @property
    def recipe(self) -> Path:
        """Resolved recipe."""
        return self.path / "recipe.toml"

    @property
    def environment(self) -> Path:
        """Environment in which the run began."""
        return self.path / "environment.json"

    @property
    def images(self) -> Path:
        """Format of its images, for use without the data set; missing if the data was the user's own."""
        return self.path / "images.json"

    @property
    def metrics(self) -> Path:
        """Record with one line for each epoch."""
        return self.path / "metrics.jsonl"

    @property
    def result(self) -> Path:
        """Figures on the test images, the last file of a run."""
        return self.path / "result.json"

    def check(self, recipe: Recipe, *, resume: bool, images: str | None = None) -> None:
        """Check that a run of a recipe may use the folder; nothing is changed.

        Args:
            recipe: The recipe.
            resume: Resume the run in the folder.
            images: Checksum of the images.

        Raises:
            CheckpointError: The folder holds something else, or a run and `resume` is False.
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
        """Create the folder and write recipe, environment, plan and format of images, unless they are there."""
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
        """Read the state to resume from; None before the first epoch."""
        return ResumeState.load(self.state) if self.state.exists() else None

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line to the record."""
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            reason = f"cannot be written ({error.strerror}): make room and resume"
            raise CheckpointError(f"{self.metrics} {reason}") from error

    def recorded(self, lines: int) -> list[bytes]:
        """Read the first lines of the record.

        Raises:
            CheckpointError: Some are missing or damaged.
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
        """Cut the record to the lines of the state."""
        if self.metrics.exists():
            write_file(self.metrics, b"".join(line + b"\n" for line in self.recorded(lines)))

    def lines(self) -> list[dict[str, Any]]:
        """Read the record.

        Raises:
            CheckpointError: The record is missing or damaged.
        """
        try:
            return [json.loads(line) for line in self.metrics.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.metrics} is missing or damaged: restore it from a copy of the run") from error

    def read_result(self) -> dict[str, Any]:
        """Read the figures on the test images.

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
        """Remove the files of an unfinished run."""
        self.soft.unlink(missing_ok=True)
        self.state.unlink(missing_ok=True)

    def _visible(self) -> Iterator[Path]:
        if not self.path.is_dir():
            yield self.path
            return
        yield from (file for file in self.path.iterdir() if not file.name.startswith("."))


def run_folder(folder_or_name: str | Path) -> Path:
    """Return the folder of a run, or the checked run folder of a network that is given by its name.

    A folder of that name comes first. What is neither is returned as it is.

    Raises:
        CheckpointError: The network's files are not there, or have been changed.
    """
    path = Path(folder_or_name)
    return path if path.exists() else networks.folder_of(str(path)) or path


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def at_budget(line: Mapping[str, Any]) -> bool:
    """Return True if an epoch had no more gates than the result: none were soft, and no ReLU was still fading."""
    return line.get("hard_share", 1.0) == 1.0 and not line.get("own_relu")


def best_line(lines: Sequence[dict[str, Any]], score: str) -> dict[str, Any]:
    """Return the line of the last phase with the highest score, among epochs with no more gates than in the end."""
    last = [line for line in lines if line["phase"] == lines[-1]["phase"]]
    return max([line for line in last if at_budget(line)] or last[-1:], key=lambda line: float(line[score]))


def own_lines(run: RunFolder) -> list[dict[str, Any]]:
    """Read the record of all epochs of a result: those of its pilot, if there was one, and its own."""
    pilot = RunFolder(run.path / "pilot")
    return [*(pilot.lines() if pilot.metrics.exists() else []), *run.lines()]


def describe_environment(seed: int, hardware: Mapping[str, Any], images: str | None) -> dict[str, Any]:
    """Describe the environment of a run, with the checksum of its images."""
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
    """Read the environment of a run.

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
