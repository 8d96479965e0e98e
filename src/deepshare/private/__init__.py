"""Private inference: one interface over engines.

result = deepshare.private.infer(model, images)
result.logits, result.cost

Public names are imported on first use: the process of a party needs next to none of them.
"""

from functools import partial
from typing import TYPE_CHECKING

from deepshare.lazy import attribute

if TYPE_CHECKING:
    from deepshare.private.api import infer
    from deepshare.private.cost import Cost, Layer, Result
    from deepshare.private.ir.trace import translate
    from deepshare.private.remote.ask import ask, connect
    from deepshare.private.remote.prepare import prepare
    from deepshare.private.remote.serve import deal, outline, serve
    from deepshare.private.runtime.engine import engine_names, find_engine
    from deepshare.private.runtime.outcome import Part

__all__ = [
    "Cost",
    "Layer",
    "Part",
    "Result",
    "ask",
    "connect",
    "deal",
    "engine_names",
    "find_engine",
    "infer",
    "outline",
    "prepare",
    "serve",
    "translate",
]

_MODULE_OF: dict[str, str | None] = {
    "Cost": "cost",
    "Layer": "cost",
    "Part": "runtime.outcome",
    "Result": "cost",
    "ask": "remote.ask",
    "connect": "remote.ask",
    "deal": "remote.serve",
    "engine_names": "runtime.engine",
    "find_engine": "runtime.engine",
    "infer": "api",
    "outline": "remote.serve",
    "prepare": "remote.prepare",
    "serve": "remote.serve",
    "translate": "ir.trace",
    "cost": None,  # for deepshare.private.cost.predict
}

__getattr__ = partial(attribute, __name__, _MODULE_OF)


def __dir__() -> list[str]:
    return __all__
