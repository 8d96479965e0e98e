"""Export to ONNX, with the gates counted in what was written."""

import copy
import math
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from deepshare.errors import ExportError, reason
from deepshare.files import write_atomically
from deepshare.sharing.convert import count_gates
from deepshare.sharing.gates import hard_share
from deepshare.sharing.observe import BATCH, check_input_size, like

if TYPE_CHECKING:
    from onnx import ModelProto

# Max-pooling and its like are left out on both sides: they are no gates.
GATE_OPERATORS = frozenset({"GreaterOrEqual", "Greater", "LessOrEqual", "Less", "Relu"})


def export_onnx(model: nn.Module, path: str | Path, input_size: Sequence[int]) -> None:
    """Write a model as one ONNX file with a free batch size, its gates as many as the model computes.

    Args:
        model: A network, shared or not; it is exported in eval mode and left as it was.
        path: The file to write, whole or not at all.
        input_size: Size of one input without the batch.

    Raises:
        ExportError: A package is missing, the export failed, the file cannot be written, or the graph does not hold
            exactly the gates of the model.
    """
    path = Path(path)
    _check_writable(path)
    if hard_share(model) < 1:
        raise ExportError("some gates are soft still, as in training: call set_progress(model, 1) first")
    gates = count_gates(model, input_size)
    proto = _export(model, input_size)
    found = _count(proto)
    if found != gates:
        raise ExportError(
            f"the exported graph compares {found:,} times for one image and the gates are {gates:,}: "
            "take other comparisons, such as torch.where(x > 0.5, ...), out of the model"
        )
    try:
        write_atomically(path, proto.SerializeToString())
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error.strerror}: give a path that can be written") from error


def count_comparisons(path: str | Path) -> int:
    """Count the gates that an ONNX file computes for one image, by the elements that its operators compare."""
    import onnx

    return _count(onnx.load(path))


def _check_writable(path: Path) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise ExportError(f"cannot write {path}: give a file in a folder that exists")


def _export(model: nn.Module, input_size: Sequence[int]) -> "ModelProto":
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ExportError("ONNX export needs two more packages: pip install 'deepshare[onnx]'") from error
    example = torch.zeros(BATCH, *check_input_size(input_size)).to(like(model))
    try:
        with torch.no_grad(), warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                copy.deepcopy(model).eval(),
                (example,),
                input_names=["images"],
                output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                verbose=False,
            )
    except Exception as error:
        cause = reason(error.__cause__ or error)
        raise ExportError(f"{type(model).__name__} could not be exported ({cause}): see torch.export") from error
    return cast("torch.onnx.ONNXProgram", program).model_proto


def _count(proto: "ModelProto") -> int:
    from onnx import shape_inference

    graph = shape_inference.infer_shapes(proto).graph
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in [*graph.value_info, *graph.output]
    }
    return sum(math.prod(shapes[node.output[0]][1:]) for node in graph.node if node.op_type in GATE_OPERATORS)
