"""Private inference in one call, and the program and images of a run folder for it."""

import json
from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError
from torch import Tensor, nn

from deepshare.data.batching import batches
from deepshare.data.images import About
from deepshare.errors import CheckpointError, DataError, EngineError, PlanMismatchError
from deepshare.private.cost import Result, total
from deepshare.private.ir.program import Program, SharedActivation
from deepshare.private.ir.trace import Revealed, translate, with_answer
from deepshare.private.runtime.engine import Role, check_images, check_installed, find_engine
from deepshare.private.runtime.party import Machine, run_here
from deepshare.sharing.plan import Plan
from deepshare.training.build import load
from deepshare.training.data_source import make_data_source
from deepshare.training.recipe.files import load_recipe
from deepshare.training.run.folder import RunFolder

# All engines hold values below this, with room for the sums that lead to them.
LARGEST = 2.0**18


def infer(
    model: nn.Module,
    images: Tensor,
    engine: str = "gateshare",
    options: Mapping[str, str] | None = None,
    *,
    answer: Revealed = "logits",
) -> Result:
    """Run a network on images privately, between processes on this machine.

    The server's process alone has the weights, the client's alone the images and the logits.

    Args:
        model: A trained network: plain, with shared gates or with masks.
        images: (N, C, H, W), normalised as the network takes them; of other networks (N, C, L) or (N, C).
        engine: One of `engine_names()`.
        options: Options of the engine, such as {"provider": "ttp"} of crypten.
        answer: What the client gets: logits, or with gateshare the best class or the best five and no logits.

    Returns:
        The client's answer and its cost; of logits with the largest error against the plain network.

    Raises:
        UnsupportedModelError: The network does something that the engine cannot do.
        EngineError: The engine is not installed, or a party failed.
    """
    chosen = find_engine(engine)
    check_installed(chosen)
    check_images(images, None)
    return run(with_answer(translate(model, tuple(images.shape[1:])), answer), images, engine, options)


def run(
    program: Program,
    images: Tensor,
    engine: str,
    options: Mapping[str, str] | None = None,
    machines: Mapping[Role, Machine] | None = None,
) -> Result:
    """Run a program as `infer` runs a network; `machines` puts parties elsewhere."""
    chosen, options = find_engine(engine), options or {}
    check_installed(chosen)
    check_images(images, program)
    chosen.check(program, options)
    expected = program.evaluate(images, see=lambda number, value: _check_range(program, number, value))
    outcomes = run_here(chosen, program, images, options, machines)
    answer = outcomes["client"].answer()
    cost = total(chosen.name, program, len(images), list(outcomes.values()))
    error = None if program.hides_scores else float((answer.double() - expected).abs().max())
    return Result(answer, replace(cost, error=error), program.hides_scores)


def _check_range(program: Program, number: int, value: Tensor) -> None:
    largest = float(value.abs().max())
    if not largest < LARGEST:
        name = program.operations[number].name
        raise EngineError(
            f"{name} reaches {largest:.2g} on these images, beyond the range of fixed point, {LARGEST:.0f}: "
            "train it with more weight decay, or normalise the images as it was trained"
        )


def from_run(folder: Path, *, best: bool = False, answer: Revealed = "logits") -> tuple[Program, About]:
    """Translate the network of a finished run.

    Args:
        folder: The run folder.
        best: Whether to take the weights that were best on the validation images, not the last ones.
        answer: What clients get.

    Raises:
        CheckpointError: The folder is unfinished or damaged, or lacks the description of its images.
        EngineError: There is no such answer.
        UnsupportedModelError: The network does something that private inference does not know.
    """
    network = load(folder, best=best)
    about = about_images(folder)
    return with_answer(translate(network, about.size), answer), about


def check_plan(program: Program, plan: Plan) -> None:
    """Check that a program shares its gates as a plan says.

    Raises:
        PlanMismatchError: It does not; the message names the first difference.
    """
    activations = [op for op in program.operations if isinstance(op, SharedActivation)]
    leaders = [program.operations[op.leader] for op in activations]
    planned = {
        site.name: (group.leader.name, group.prototypes, group.gates) for group in plan.groups for site in group.gated
    }
    served = {
        _site(op.name, planned): (_site(leader.name, planned), op.prototypes, leader.comparisons)
        for op, leader in zip(activations, leaders, strict=True)
    }
    differing = sorted(name for name in served.keys() | planned.keys() if served.get(name) != planned.get(name))
    if differing:
        raise PlanMismatchError(
            f"the server shares the gates of {differing[0]} otherwise than the plan: nothing was sent"
        )


def _site(name: str, sites: Container[str]) -> str:
    """The site of an activation, which may be inside the module at that site."""
    outer = name.removesuffix(".activation")
    return name if name in sites or outer == name else _site(outer, sites)


def about_images(folder: Path) -> About:
    """The description of the images in a run folder."""
    path = RunFolder(folder).images
    try:
        return About.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{folder} does not say what its images are like: write {path.name} into it, with size, mean, std, classes"
        ) from error
    except (OSError, ValueError, ValidationError) as error:
        raise CheckpointError(f"{path} is damaged: restore it from the machine that trained the run") from error


def training_images(folder: Path, count: int, data_dir: Path | None) -> Tensor:
    """Training images of a run's data set, normalised, for calibration by the server.

    Raises:
        DataError: The data set is not there.
    """
    feed = make_data_source(None, load_recipe(RunFolder(folder).recipe), data_dir)
    feed.check()
    return feed.sample(count)


def sample_images(folder: Path, count: int, data_dir: Path | None) -> tuple[list[str], Tensor]:
    """The first test images of a run's data set, normalised, with names that say their class.

    Raises:
        DataError: The data set is not there.
    """
    recipe = load_recipe(RunFolder(folder).recipe)
    feed = make_data_source(None, recipe, data_dir)
    if count < 1:
        raise DataError(f"--samples {count}: give more than 0")
    if feed.test_set is None:
        raise DataError(f"no test images of {recipe.data.name} to take: give pictures with --images")
    if count > len(feed.test_set):
        raise DataError(f"--samples {count}: {recipe.data.name} has {len(feed.test_set):,} test images; give no more")
    images, labels = next(iter(batches(feed.test_set, count, augment=feed.prepare)))
    classes = feed.test_set.classes
    said = [f" ({classes[label]})" for label in labels.tolist()] if labels.dim() == 1 else [""] * len(labels)
    return [f"test image {number}{what}" for number, what in enumerate(said)], images
