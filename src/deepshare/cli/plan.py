"""`deepshare plan`: which sites share gates within a budget."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from deepshare.cli.options import Flag, InputSize, Json, Model, Relu6ToRelu, build, check_writable, size_of
from deepshare.errors import RecipeError

if TYPE_CHECKING:
    from torch import nn

    from deepshare.sharing.plan import Plan
    from deepshare.training.recipe import Recipe

SNL = Group("Allocation by SNL", help="With --allocate snl the network is trained first; see deepshare train.")


def plan(
    model: Model,
    /,
    *,
    budget: str,
    input_size: InputSize = None,
    allocate: str = "uniform",
    no_layer_sharing: Flag = False,
    max_group: int | None = None,
    per_block: Flag = False,
    patch: int = 1,
    relu6_to_relu: Relu6ToRelu = False,
    cost: str | None = None,
    out: Path | None = None,
    as_json: Json = False,
    recipe: Annotated[str | None, Parameter(name=["--recipe", "-r"], group=SNL)] = None,
    run: Annotated[Path | None, Parameter(group=SNL)] = None,
    data_dir: Annotated[Path | None, Parameter(group=SNL)] = None,
    resume: Annotated[Flag, Parameter(group=SNL)] = False,
) -> None:
    """Plan how a network shares its gates within a budget, and show the plan.

    Args:
        budget: Gates to spend: a count such as 6000, or a share of all ReLUs such as 1.2%.
        allocate: How the budget is divided: uniform, senet (densities for resnet18 and wrn22-8), snl, or a JSON file
            with one count for each site, {"layer1.0.act1": 655, ...}.
        no_layer_sharing: Share across channels only.
        max_group: At most so many sites share the gates of one.
        per_block: Share across layers only within a residual block.
        patch: Side of square patches whose neurons share a gate, too.
        cost: Predict what private inference costs with this engine, beside the network with all its ReLUs: crypten,
            gateshare, spu-cheetah or spu-semi2k.
        out: File to write the plan to.
        recipe: How to train, and on which data.
        run: Folder for the training; its snl/counts.json can be given to --allocate another time.
        data_dir: Where data sets are.
        resume: Go on with the training in the folder.
    """
    if out is not None:
        check_writable(out)
    size = size_of(model, input_size)
    from deepshare import plan as make_plan

    if cost is not None:
        from deepshare.private.engine import find_engine

        find_engine(cost)

    if allocate == "snl":
        if recipe is None or run is None:
            raise RecipeError("--allocate snl trains the network: give --recipe and --run, a folder for it")
        if relu6_to_relu:
            raise RecipeError(
                "--allocate snl trains a network by its name, without --relu6-to-relu: use deepshare.allocate"
            )
        chosen = recipe_of(model, recipe, budget)
        network = build(model, relu6_to_relu=False, classes=chosen.model.classes, **chosen.model.arguments)
        shares: Mapping[str, float] | None = counts_by_snl(chosen, run, data_dir, resume)
    else:
        network = build(model, relu6_to_relu=relu6_to_relu)
        from deepshare.sharing.sites import find_sites
        from deepshare.training.allocate import weights

        shares = weights(allocate, find_sites(network, size))
    made = make_plan(
        network,
        size,
        budget,
        shares,
        layer_sharing=not no_layer_sharing,
        max_group=max_group,
        per_block=per_block,
        patch=patch,
    )
    said = with_cost(network, made, cost, as_json) if cost else made.to_json() if as_json else f"{made}\n"
    if out is not None:
        made.save(out)
    print(said, end="")
    if out is not None:
        print(f"written to {out}", file=sys.stderr)


def with_cost(network: "nn.Module", made: "Plan", engine: str, as_json: bool) -> str:
    """A plan and what it saves with an engine."""
    from deepshare import share
    from deepshare.private.cost import comparison, predict
    from deepshare.private.show import cost_dict

    costs = {
        "all ReLUs": predict(network, made.input_size, engine),
        "this plan": predict(share(network, made), made.input_size, engine),
    }
    if as_json:
        said = {name: cost_dict(cost) for name, cost in costs.items()}
        return json.dumps({"plan": json.loads(made.to_json()), "cost": said}) + "\n"
    return f"{made}\n\nOne image with {engine}, predicted:\n\n{comparison(costs)}\n"


def recipe_of(model: str, recipe: str, budget: str) -> "Recipe":
    """A recipe for this network and budget; its arguments are for its own network."""
    from deepshare.training.recipe import changed, load_recipe

    chosen = load_recipe(recipe, {"budget.gates": budget})
    other = {"model.name": model, "model.arguments": {}}
    return chosen if chosen.model.name == model else changed(chosen, other)


def counts_by_snl(recipe: "Recipe", run: Path, data_dir: Path | None, resume: bool) -> Mapping[str, float]:
    """Train the network of a recipe and let SNL find how many gates each site wants."""
    from deepshare.cli.progress import make_reporter
    from deepshare.training.fit import allocate

    reporter = make_reporter()
    try:
        return allocate(recipe=recipe, out=run, data_dir=data_dir, resume=resume, reporter=reporter)
    finally:
        reporter.end()
