"""`deepshare plan`: which sites share gates within a budget."""

import json
from pathlib import Path

from deepshare.cli.options import Flag, InputSize, Json, Model, Relu6ToRelu, build, check_writable, size_of
from deepshare.errors import BudgetError


def plan(
    model: Model,
    /,
    *,
    budget: str,
    input_size: InputSize = None,
    weights: Path | None = None,
    no_layer_sharing: Flag = False,
    max_group: int | None = None,
    per_block: Flag = False,
    relu6_to_relu: Relu6ToRelu = False,
    out: Path | None = None,
    as_json: Json = False,
) -> None:
    """Plan how a network shares its gates within a budget, and show the plan.

    Args:
        budget: Gates to spend: a count such as 6000, or a share of all ReLUs such as 1.2%.
        weights: JSON file with one weight for each site, {"layer1.0.act1": 2.5, ...}: how the budget is divided.
        no_layer_sharing: Share across channels only.
        max_group: At most so many sites share the gates of one.
        per_block: Share across layers only within a residual block.
        out: File to write the plan to.
    """
    if out is not None:
        check_writable(out)
    site_weights = None if weights is None else read_weights(weights)
    size = size_of(model, input_size)
    from deepshare import plan as make_plan

    made = make_plan(
        build(model, relu6_to_relu=relu6_to_relu),
        size,
        budget,
        site_weights,
        layer_sharing=not no_layer_sharing,
        max_group=max_group,
        per_block=per_block,
    )
    if out is not None:
        made.save(out)
    print(made.to_json() if as_json else made, end="" if as_json else "\n")


def read_weights(path: Path) -> dict[str, float]:
    """Read the weights of the sites from a JSON file.

    Raises:
        BudgetError: The file cannot be read or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BudgetError(f"cannot read {path}: {error.strerror}: give a JSON file of weights") from error
    except ValueError as error:
        raise BudgetError(f"{path} is no JSON ({error}): give one weight for each site, by name") from error
    numbers = isinstance(content, dict) and all(type(value) in (int, float) for value in content.values())
    if not numbers:
        raise BudgetError(f'{path}: give one number for each site, such as {{"layer1.0.act1": 2.5, ...}}')
    return {name: float(value) for name, value in content.items()}
