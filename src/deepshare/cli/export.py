"""`deepshare export`: ONNX export of a shared network."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from deepshare.cli.options import NO_REWRITING, Json, ModelArguments, Rewriting, build, check_writable, note_weights
from deepshare.errors import CheckpointError, PlanError

if TYPE_CHECKING:
    from torch import nn

    from deepshare.sharing.plan import Plan

Source = Annotated[
    str, Parameter(name="MODEL", help="Name of a network of the zoo, or the folder or name of a finished run.")
]


def export(
    source: Source,
    /,
    *,
    out: Path,
    plan: Path | None = None,
    weights: Path | None = None,
    classes: int | None = None,
    arguments: ModelArguments = None,
    rewriting: Rewriting = NO_REWRITING,
    as_json: Json = False,
) -> None:
    """Export a shared network to ONNX and check the comparisons in the graph.

    A network by name needs a plan. The folder of a run has everything: give no options but --out and --json.

    Args:
        out: ONNX file to write.
        plan: Plan file of this network, from deepshare plan; it also sets the input size.
        weights: Safetensors file of the shared or of the plain network; by default random weights.
        classes: Classes that the network tells apart, if not its usual number.
    """
    check_writable(out)
    from deepshare.training.run.folder import run_folder

    source = str(run_folder(source))
    is_run = Path(source).is_dir()
    if is_run and (plan or weights or classes or arguments or rewriting.given):
        raise PlanError(f"the run {source} has its own plan and weights: leave out all options but --out and --json")
    if not is_run and plan is None:
        asked = f"there is no folder {source}, and a network" if os.sep in source else source
        raise PlanError(f"{asked} needs --plan, a file that deepshare plan wrote; only the folder of a run has its own")
    from deepshare import Plan, export_onnx, load
    from deepshare.sharing.onnx import count_comparisons

    planned = Plan.load(plan or Path(source, "plan.json"))
    if is_run:
        shared = load(source)
    else:
        if weights is None:
            note_weights(source)
        given = (arguments or {}) | ({} if classes is None else {"num_classes": classes})
        shared = share_and_fill(build(source, rewriting, **given), planned, weights)
    export_onnx(shared, out, planned.input_size)
    comparisons = count_comparisons(out)
    if as_json:
        figures = {"gates": planned.gates, "comparisons": comparisons}
        print(json.dumps({"model": source, "file": str(out), **figures}))
    else:
        print(f"{out}: {comparisons:,} comparisons for one image, {planned.gates:,} gates in the plan")


def share_and_fill(plain: "nn.Module", plan: "Plan", weights: Path | None) -> "nn.Module":
    """Share the gates of a network and load weights of the shared or of the plain network.

    Raises:
        CheckpointError: The file cannot be read or has the weights of another network.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from deepshare import share
    from deepshare.training.run.checkpoint import fill

    shared = share(plain, plan)
    if weights is None:
        return shared
    try:
        tensors = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {weights} ({error}): give a safetensors file") from error
    added = {key: value for key, value in shared.state_dict().items() if key not in plain.state_dict()}
    fill(shared, tensors if added.keys() & tensors.keys() else {**added, **tensors}, weights)
    return shared
