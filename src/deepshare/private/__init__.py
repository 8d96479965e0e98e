"""Private inference: one interface over engines.

result = deepshare.private.infer(model, images, engine="crypten")
result.logits, result.cost
"""

from deepshare.private.engine import engine_names, find_engine
from deepshare.private.infer import infer
from deepshare.private.result import Cost, Layer, Part, Result
from deepshare.private.translate import translate

__all__ = ["Cost", "Layer", "Part", "Result", "engine_names", "find_engine", "infer", "translate"]
