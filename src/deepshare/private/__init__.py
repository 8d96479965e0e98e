"""Private inference: one interface over engines.

result = deepshare.private.infer(model, images, engine="crypten")
result.logits, result.cost
"""

from deepshare.private.api import infer
from deepshare.private.cost import Cost, Layer, Result
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import Part, engine_names, find_engine

__all__ = ["Cost", "Layer", "Part", "Result", "engine_names", "find_engine", "infer", "translate"]
