"""`deepshare plan`: a plan of shared gates within a budget."""

import json
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from deepshare.cli.options import (
    ENGINES,
    NO_REWRITING,
    AnswerKind,
    Flag,
    InputSize,
    Json,
    Model,
    ModelArguments,
    Rewriting,
    build,
    check_writable,
    note_weights,
    size_of,
)
from deepshare.errors import DataError, DeepShareError, RecipeError, UnsupportedModelError

if TYPE_CHECKING:
    from torch import nn

    from deepshare.private.cost import Cost as PrivateCost
    from deepshare.private.ir.program import Program
    from deepshare.sharing.plan import Plan
    from deepshare.training.data_source import DataSource
    from deepshare.training.recipe.files import Recipe

Cost = Annotated[
    tuple[str, ...],
    Parameter(
        negative="",
        show_default=False,
        consume_multiple=True,
        help="Predict the cost of private inference with this engine, next to the network with all its ReLUs; with "
        f"several engines beside one another: {ENGINES}.",
    ),
]
TIMED = "gateshare"
"""The engine whose seconds are estimated."""
SNL = Group("Allocation by SNL", help="With --allocate snl the network is trained first; see deepshare train.")


def plan(
    model: Model,
    /,
    *,
    budget: str,
    input_size: InputSize = None,
    arguments: ModelArguments = None,
    allocate: str = "uniform",
    no_layer_sharing: Flag = False,
    max_group: int | None = None,
    per_block: Flag = False,
    groups: Literal["consecutive", "stage"] | None = None,
    patch: int | None = None,
    first_site_only: Flag = False,
    rewriting: Rewriting = NO_REWRITING,
    recipe: Annotated[str | None, Parameter(name=["--recipe", "-r"])] = None,
    cost: Cost = (),
    no_seconds: Flag = False,
    answer: AnswerKind = "logits",
    out: Path | None = None,
    as_json: Json = False,
    run: Annotated[Path | None, Parameter(group=SNL)] = None,
    data_dir: Annotated[Path | None, Parameter(group=SNL)] = None,
    resume: Annotated[Flag, Parameter(group=SNL)] = False,
) -> None:
    """Plan the sharing of a network's gates within a budget, and print the plan.

    Args:
        budget: Number of gates, such as 6000, or a percentage of all ReLUs, such as 1.2%.
        allocate: How the budget is divided: uniform, senet or snl-densities (shipped for some networks), snl, or a
            JSON file with one count for each site, {"layer1.0.act1": 655, ...}.
        no_layer_sharing: Share gates across channels only.
        max_group: Maximum number of sites in a group.
        per_block: Share gates across layers only within a residual block.
        groups: Which sites of one shape share gates: those in a row (consecutive), or all of a stage, where others may
            come between them.
        patch: Side of square patches whose neurons also share a gate.
        first_site_only: The weight of a group is that of its first site, not the sum.
        recipe: Plan the network of a recipe, with its arguments, image size and [budget]; flags take precedence. For
            snl it also sets the training and the data.
        no_seconds: With --cost gateshare, do not estimate seconds, for which small networks are run privately here and
            the network's products timed, in some ten seconds; nothing is kept.
        out: File for the plan.
        run: Folder for the training; --allocate also accepts its snl/counts.json.
        data_dir: Folder of data sets.
        resume: Resume the training in the folder.
    """
    if out is not None:
        check_writable(out)
    if allocate == "snl" and (recipe is None or run is None):
        raise RecipeError("--allocate snl trains the network: give --recipe and --run, a folder for it")
    limits = given(
        layer_sharing=False if no_layer_sharing else None,
        max_group=max_group,
        per_block=per_block or None,
        groups=groups,
        patch=patch,
        first_site_only=first_site_only or None,
    )
    arguments = arguments or {}
    chosen = recipe_of(model, recipe, {"gates": budget, **limits}, rewriting, arguments) if recipe else None
    wanted = size_of(model, input_size) if chosen is None else size_in(chosen, input_size)
    if not cost and answer != "logits":
        raise DeepShareError(f"--answer {answer} changes the cost of private inference: give --cost ENGINE with it")
    if cost:
        from deepshare.private.runtime.engine import find_engine

        for engine in cost:
            find_engine(engine)
    if no_seconds and TIMED not in cost:
        raise DeepShareError(f"--no-seconds: seconds are estimated with --cost {TIMED} alone, so leave it out")
    from deepshare.training.build import divide, plan_options

    exact = {"exact_pools": True} if rewriting.maxpool == "exact" else {}
    options = plan_options(chosen) if chosen else {**limits, **exact}
    if chosen is None or not chosen.model.weights:
        note_weights(model)
    network = network_of(chosen) if chosen else build(model, rewriting, **arguments)
    if allocate == "snl" and chosen and run:
        source = source_of(chosen, data_dir, input_size)
        wanted = source.input_size
        divide(network, wanted, budget, None, **options)  # refuse an impossible budget before any training
        shares: Mapping[str, float] | None = counts_by_snl(chosen, run, source, resume)
    else:
        from deepshare.sharing.sites import find_sites
        from deepshare.training.recipe.allocation import find

        shares = find(allocate).read(find_sites(network, wanted))
    made = divide(network, wanted, budget, shares, **options)
    said = (
        with_cost(network, made, dict.fromkeys(cost), answer, as_json, seconds=TIMED in cost and not no_seconds)
        if cost
        else made.to_json()
        if as_json
        else with_engines(network, made)
    )
    if out is not None:
        made.save(out)
    print(said, end="")
    if out is not None:
        print(f"written to {out}", file=sys.stderr)


def with_engines(network: "nn.Module", made: "Plan") -> str:
    """Format a plan, with the engines that run the network it makes and the reasons of those that refuse."""
    from deepshare import share
    from deepshare.private.cost import describe_engines, engine_problems

    engines = describe_engines(engine_problems(share(network, made).eval(), made.input_size))
    return f"{with_others(network, made)}\n{engines}\n"


def with_others(network: "nn.Module", made: "Plan") -> str:
    """Format a plan, with the comparisons that it leaves as they are."""
    from deepshare.sharing.sites import find_sites

    others = find_sites(network, made.input_size).also_compares()
    return f"{made}\n{others}" if others else str(made)


def with_cost(
    network: "nn.Module", made: "Plan", engines: Collection[str], answer: AnswerKind, as_json: bool, *, seconds: bool
) -> str:
    """Format a plan with the predicted cost on engines, and with seconds where they are asked for."""
    from deepshare import share
    from deepshare.private.cost import cost_comparison, cost_of_engines, first_of, predict, seconds_table
    from deepshare.private.ir.trace import translate

    networks = {"all ReLUs": network, "this plan": share(network, made)}
    programs: dict[str, Program] = {}
    costs: dict[str, dict[str, PrivateCost]] = {}
    refused: dict[str, list[str]] = {}
    for engine in engines:
        try:
            programs = programs or {name: translate(one, made.input_size) for name, one in networks.items()}
            costs[engine] = {
                name: predict(one, made.input_size, engine, answer=answer) for name, one in programs.items()
            }
        except UnsupportedModelError as error:
            refused[engine] = list(error.problems)
    timed = estimate(programs, costs[TIMED]) if seconds and TIMED in costs else {}
    if as_json:
        return json.dumps({"plan": json.loads(made.to_json())} | dumped(engines, costs, refused, timed)) + "\n"
    text = f"{with_others(network, made)}\n"
    if len(costs) == 1:
        ((engine, by_network),) = costs.items()
        text += f"\nOne image with {engine}, predicted:\n\n{cost_comparison(by_network)}\n"
    elif costs:
        text += f"\nOne image, predicted:\n\n{cost_of_engines(costs)}\n"
    for engine, problems in refused.items():
        text += f"\nNo cost, as {engine} refuses it: {first_of(problems)}\n"
    whose = f" with {TIMED}" if len(engines) > 1 else ""
    return f"{text}\nSeconds in all{whose}, estimated:\n\n{seconds_table(timed)}\n" if timed else text


def dumped(
    engines: Collection[str],
    costs: Mapping[str, Mapping[str, "PrivateCost"]],
    refused: Mapping[str, list[str]],
    timed: Mapping[str, object],
) -> dict[str, object]:
    """Costs for JSON: of one engine by network, of several by engine and network."""
    from deepshare.private.cost import cost_dict

    said = {
        engine: {name: cost_dict(cost) for name, cost in by_network.items()} for engine, by_network in costs.items()
    }
    for name, estimated in timed.items():
        said[TIMED][name]["estimated_seconds"] = estimated
    if len(engines) > 1:
        return {"costs": said | {engine: {"refused": problems} for engine, problems in refused.items()}}
    (engine,) = engines
    return {"refused": refused[engine]} if engine in refused else {"cost": said[engine]}


def estimate(
    programs: Mapping[str, "Program"], costs: Mapping[str, "PrivateCost"]
) -> dict[str, dict[str, dict[str, float]]]:
    """Estimate seconds by a calibration on this machine, which says what it does."""
    from deepshare.private.cost import seconds_by_link
    from deepshare.private.runtime.engine import TimedEngine, check_installed, find_engine

    engine = find_engine(TIMED)
    check_installed(engine)
    if not isinstance(engine, TimedEngine):
        raise DeepShareError(f"seconds of {TIMED} cannot be estimated: give --no-seconds")
    print("timing small private runs and the network's products, some ten seconds (--no-seconds)", file=sys.stderr)
    calibration = engine.calibrate()
    return {name: seconds_by_link(calibration, one, costs[name]) for name, one in programs.items()}


def given(**values: object) -> dict[str, object]:
    """Drop values that are None."""
    return {key: value for key, value in values.items() if value is not None}


def recipe_of(
    model: str, recipe: str, budget: Mapping[str, object], rewriting: Rewriting, arguments: Mapping[str, object]
) -> "Recipe":
    """Load a recipe for this network and budget; its model arguments apply only to its own network."""
    from deepshare.training.recipe.files import changed, load_recipe

    changes = {f"budget.{key}": value for key, value in budget.items()}
    chosen = load_recipe(recipe, changes | {f"model.{key}": value for key, value in rewriting.given.items()})
    other: dict[str, object] = {} if chosen.model.name == model else {"model.name": model, "model.arguments": {}}
    other |= {f"model.arguments.{key}": value for key, value in arguments.items()}
    return changed(chosen, other) if other else chosen


def network_of(recipe: "Recipe") -> "nn.Module":
    """Build the network of a recipe."""
    from deepshare.training.build import build

    return build(recipe.model)


def size_in(recipe: "Recipe", input_size: str | None, network: "nn.Module | None" = None) -> tuple[int, ...]:
    """Parse the given input size, or return that of a recipe's images, with the channels that a network takes."""
    from deepshare.data.images import height_and_width
    from deepshare.sharing.observe import image_channels

    if input_size:
        return size_of(recipe.model.name, input_size)
    channels = recipe.model.arguments.get("channels") or (None if network is None else image_channels(network))
    return int(channels or size_of(recipe.model.name, None)[0]), *height_and_width(recipe.data.image_size)


def source_of(recipe: "Recipe", data_dir: Path | None, input_size: str | None) -> "DataSource":
    """The data that SNL trains on, once it is known that its images have the size that was given, if one was."""
    from deepshare.training.data_source import make_data_source

    source = make_data_source(None, recipe, data_dir)
    if input_size and size_of(recipe.model.name, input_size) != source.input_size:
        there = "x".join(map(str, source.input_size))
        raise DataError(f"--input-size {input_size}: SNL trains on {recipe.data.name}, which has {there}: leave it out")
    return source


def counts_by_snl(recipe: "Recipe", run: Path, source: "DataSource", resume: bool) -> Mapping[str, float]:
    """Train the network of a recipe with SNL and return the gates of each site."""
    from deepshare.training.api import allocate
    from deepshare.training.reporter import make_reporter

    reporter = make_reporter()
    data = [part for part in (source.train_set, source.validation_set, source.test_set) if part is not None]
    try:
        return allocate(recipe=recipe, out=run, data=data, resume=resume, reporter=reporter)
    finally:
        reporter.end()
