"""Private inference: one interface over engines.

result = deepshare.private.infer(model, images)
result.logits, result.cost

Public names are imported on first use: the process of a party needs next to none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepshare.private.api import infer
    from deepshare.private.cost import Cost, Layer, Result
    from deepshare.private.ir.trace import translate
    from deepshare.private.remote.connection import connect
    from deepshare.private.runtime.engine import Part, engine_names, find_engine

__all__ = ["Cost", "Layer", "Part", "Result", "connect", "engine_names", "find_engine", "infer", "translate"]

_MODULE_OF = {
    "Cost": "cost",
    "Layer": "cost",
    "Part": "runtime.engine",
    "Result": "cost",
    "connect": "remote.connection",
    "engine_names": "runtime.engine",
    "find_engine": "runtime.engine",
    "infer": "api",
    "translate": "ir.trace",
}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(import_module(f"deepshare.private.{_MODULE_OF[name]}"), name)
    if name == "cost":  # for deepshare.private.cost.predict
        return import_module("deepshare.private.cost")
    raise AttributeError(f"module 'deepshare.private' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
