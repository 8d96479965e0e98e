"""The outline of a program as JSON, which a server sends to clients. It is checked, and nothing of it is executed."""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields
from math import prod
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from deepshare.errors import EngineError, reason
from deepshare.private.ir.program import OPERATIONS, Input, Operation, Program

VERSION = 2
MOST_OPERATIONS, MOST_ELEMENTS = 1 << 14, 1 << 31

_FORMATS = {"float64": torch.float64, "int64": torch.int64, "bool": torch.bool}
_CURE = "install the same deepshare"
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
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
            raise EngineError(f"the other party does not speak version {VERSION} of the outline: {_CURE}")
        if not 0 < len(content["operations"]) <= MOST_OPERATIONS:
            raise ValueError("too many operations, or none")
        operations = tuple(_parsed(entry) for entry in content["operations"])
        for number, operation in enumerate(operations):
            operation.check(number, operations)
        if not isinstance(operations[0], Input):
            raise ValueError("no images come first")
    except (*_DAMAGE, RuntimeError, RecursionError) as error:
        raise EngineError(f"the other party sent a damaged outline ({reason(error)[:80]}): {_CURE}") from error
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
    kinds = get_type_hints(kind)
    values = {f.name: _value(entry[f.name]) for f in fields(kind)}
    if set(entry) != {*values, "kind"}:
        raise ValueError("unknown fields")
    for name, value in values.items():
        if not _fits(value, kinds[name]):
            raise ValueError(f"a wrong {name}")
    _check_size(values["shape"])
    return kind(**values)


def _fits(value: Any, kind: Any) -> bool:
    """Return True if a value is of the type of a field."""
    if get_origin(kind) in (UnionType, Union):
        return any(_fits(value, one) for one in get_args(kind))
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        wanted = [parts[0]] * len(value) if parts[-1] is Ellipsis and isinstance(value, tuple) else list(parts)
        return isinstance(value, tuple) and len(value) == len(wanted) and all(map(_fits, value, wanted))
    if kind is float:
        return isinstance(value, float | int) and not isinstance(value, bool) and abs(value) < 2.0**64
    return isinstance(value, kind) and (kind is not int or type(value) is int)


def _check_size(shape: Sequence[int]) -> int:
    """The number of elements of a shape, before anything of that size is made."""
    if not all(type(size) is int and 0 <= size <= MOST_ELEMENTS for size in shape) or len(shape) > 8:
        raise ValueError("a shape that is none")
    if (count := prod(shape)) > MOST_ELEMENTS:
        raise ValueError("a shape that is too large")
    return count


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return value
    if "hidden" in value:
        _check_size(value["hidden"])
        return torch.empty(value["hidden"], dtype=torch.float64, device="meta")
    shape, kind = value["shape"], _FORMATS[value["format"]]
    count = _check_size(shape)
    data = base64.b64decode(value["data"], validate=True)
    if len(data) != ((count + 7) // 8 if kind == torch.bool else count * kind.itemsize):
        raise ValueError("a tensor of another size than its shape")
    if kind == torch.bool:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=count)
        return torch.from_numpy(bits.astype(bool)).reshape(shape)
    numbers = np.frombuffer(bytearray(data), torch.empty(0, dtype=kind).numpy().dtype)  # of which there may be none
    return torch.from_numpy(numbers).reshape(shape)
