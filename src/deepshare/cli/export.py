"""`deepshare export`: a shared network as an ONNX file."""

import json
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

from deepshare.cli.options import Json, Model, Relu6ToRelu, build, check_writable
from deepshare.errors import CheckpointError

if TYPE_CHECKING:
    from torch import nn


def export(
    model: Model,
    /,
    *,
    plan: Path,
    out: Path,
    weights: Path | None = None,
    classes: int | None = None,
    relu6_to_relu: Relu6ToRelu = False,
    as_json: Json = False,
) -> None:
    """Write a shared network to an ONNX file, and count the comparisons in it.

    Args:
        plan: Plan file that deepshare plan wrote for this network; it also says the input size.
        out: ONNX file to write.
        weights: Weights as a safetensors file, of the shared network or of the plain one; by default random.
        classes: Classes that the network tells apart, if not its usual number.
    """
    check_writable(out)
    from deepshare import Plan, export_onnx, share
    from deepshare.sharing.onnx import count_comparisons

    loaded = Plan.load(plan)
    arguments = {} if classes is None else {"classes": classes}
    plain = build(model, relu6_to_relu=relu6_to_relu, **arguments)
    shared = share(plain, loaded)
    if weights is not None:
        load_weights(shared, weights, optional=shared.state_dict().keys() - plain.state_dict().keys())
    export_onnx(shared, out, loaded.input_size)
    comparisons = count_comparisons(out)
    if as_json:
        print(json.dumps({"model": model, "file": str(out), "gates": loaded.gates, "comparisons": comparisons}))
    else:
        print(f"{out}: {comparisons:,} comparisons for one image, {loaded.gates:,} gates in the plan")


def load_weights(model: "nn.Module", path: Path, optional: Set[str]) -> None:
    """Fill a model from a safetensors file.

    Args:
        model: The model; it is touched only if the whole file fits.
        path: The file.
        optional: Keys that the file may lack, all of them or none: what sharing adds to a plain network.

    Raises:
        CheckpointError: The file cannot be read or holds the weights of another network.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {path} ({error}): give a safetensors file") from error
    own = model.state_dict()
    needed = own.keys() - optional if optional.isdisjoint(tensors) else own.keys()
    problems = [f"no {key} in the file" for key in sorted(needed - tensors.keys())]
    problems += [f"no {key} in the network" for key in sorted(tensors.keys() - own.keys())]
    problems += [
        f"{key} is {list(tensors[key].shape)} in the file and {list(own[key].shape)} in the network"
        for key in sorted(tensors.keys() & own.keys())
        if tensors[key].shape != own[key].shape
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise CheckpointError(f"{path} holds the weights of another network: {'; '.join(problems[:3])}{more}")
    model.load_state_dict(own | tensors)
