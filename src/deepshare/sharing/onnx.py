"""ONNX export that checks the number of gates in the exported graph."""

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

# Max-pooling and similar operators are not gates, here or in `count_gates`.
GATE_OPERATORS = frozenset({"GreaterOrEqual", "Greater", "LessOrEqual", "Less", "Relu"})


def export_onnx(model: nn.Module, path: str | Path, input_size: Sequence[int]) -> None:
    """Export a model to one ONNX file with a dynamic batch size and check its number of gates.

    Args:
        model: A network, shared or not. It is exported in eval mode and not modified.
        path: The file, written atomically.
        input_size: Size of one input without the batch.

    Raises:
        ExportError: A package is missing, the export failed, the file cannot be written, or the number of gates in the
            graph is not that of the model.
    """
    path = Path(path)
    _check_writable(path)
    if hard_share(model) < 1:
        raise ExportError("some gates are still soft, as in training: call set_progress(model, 1) first")
    gates = count_gates(model, input_size)
    proto = _export(model, input_size)
    found = _count(proto)
    if found != gates:
        raise ExportError(
            f"the exported graph has {found:,} comparisons per image but the model has {gates:,} gates: "
            "remove other comparisons, such as torch.where(x > 0.5, ...), from the model"
        )
    try:
        write_atomically(path, proto.SerializeToString())
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error.strerror}: give a path that can be written") from error


def count_comparisons(path: str | Path) -> int:
    """Count the gates of an ONNX graph for one image, by the elements that its operators compare."""
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
