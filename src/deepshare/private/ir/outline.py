"""The outline of a program as JSON, which a server sends to clients. It is checked, and nothing of it is executed."""

import base64
import hashlib
import json
from dataclasses import fields
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.ir.program import OPERATIONS, Operation, Program

VERSION = 2

_FORMATS = {"float64": torch.float64, "int64": torch.int64, "bool": torch.bool}
_KINDS = {operation.__name__: operation for operation in OPERATIONS}


def dump(program: Program) -> str:
    """Serialise the public part of a program; of hidden tensors the shape alone."""
    operations = [{"kind": op.kind, **{f.name: _dumped(op, f.name) for f in fields(op)}} for op in program.operations]
    return json.dumps({"version": VERSION, "operations": operations}, sort_keys=True)


def digest(program: Program) -> str:
    """Hash of the outline, 64 characters: equal for two parties that run the same program."""
    return hashlib.sha256(dump(program).encode()).hexdigest()


def parse(text: str) -> Program:
    """Read an outline from another party.

    Raises:
        EngineError: It is of another version, or no outline.
    """
    try:
        content = json.loads(text)
        version = content["version"]
        if version != VERSION:
            raise EngineError(
                f"the other party speaks version {version} of the outline, not {VERSION}: install the same deepshare"
            )
        operations = tuple(_parsed(entry) for entry in content["operations"])
        for number, operation in enumerate(operations):
            operation.check(number, operations)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise EngineError(f"the other party sent a damaged outline ({error}): install the same deepshare") from error
    return Program(operations)


def _dumped(operation: Operation, name: str) -> Any:
    value = getattr(operation, name)
    if not isinstance(value, Tensor):
        return value
    if name in operation.hidden:
        return {"hidden": list(value.shape)}
    array = value.contiguous().numpy()
    packed = np.packbits(array) if value.dtype == torch.bool else array
    return {
        "shape": list(value.shape),
        "format": str(value.dtype).removeprefix("torch."),
        "data": base64.b64encode(packed.tobytes()).decode(),
    }


def _parsed(entry: dict[str, Any]) -> Operation:
    kind = _KINDS[entry["kind"]]
    values = {f.name: _value(entry[f.name]) for f in fields(kind)}
    if set(entry) != {*values, "kind"}:
        raise ValueError(f"unknown fields of {entry['kind']}")
    return kind(**values)


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return value
    if "hidden" in value:
        return torch.empty(value["hidden"], dtype=torch.float64, device="meta")
    shape, count = value["shape"], prod(value["shape"])
    data = base64.b64decode(value["data"], validate=True)
    kind = _FORMATS[value["format"]]
    if kind == torch.bool:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=count)
        return torch.from_numpy(bits.astype(bool)).reshape(shape)
    numbers = np.frombuffer(bytearray(data), torch.empty(0, dtype=kind).numpy().dtype)  # of which there may be none
    return torch.from_numpy(numbers).reshape(shape)
