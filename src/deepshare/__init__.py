"""DeepShare: share the ReLU gates of a network across channels and layers, within a budget.

Public names are imported on first use, so `import deepshare` is cheap.
"""

from functools import partial
from typing import TYPE_CHECKING

from deepshare.lazy import attribute

if TYPE_CHECKING:
    from deepshare import data, private, zoo
    from deepshare.errors import DeepShareError
    from deepshare.sharing.convert import count_gates, relu6_to_relu, share
    from deepshare.sharing.onnx import export_onnx
    from deepshare.sharing.piecewise import maxpool_to_avgpool, maxpool_to_relu, piecewise_to_relu, smooth_to_relu
    from deepshare.sharing.plan import Plan
    from deepshare.sharing.planning import plan
    from deepshare.sharing.sites import find_sites
    from deepshare.training.api import allocate, fit
    from deepshare.training.build import load
    from deepshare.training.evaluate import evaluate

__version__ = "0.2.0"

__all__ = [
    "DeepShareError",
    "Plan",
    "allocate",
    "count_gates",
    "data",
    "evaluate",
    "export_onnx",
    "find_sites",
    "fit",
    "load",
    "maxpool_to_avgpool",
    "maxpool_to_relu",
    "piecewise_to_relu",
    "plan",
    "private",
    "relu6_to_relu",
    "share",
    "smooth_to_relu",
    "zoo",
]

_MODULE_OF: dict[str, str | None] = {
    "DeepShareError": "errors",
    "Plan": "sharing.plan",
    "allocate": "training.api",
    "count_gates": "sharing.convert",
    "evaluate": "training.evaluate",
    "export_onnx": "sharing.onnx",
    "find_sites": "sharing.sites",
    "fit": "training.api",
    "load": "training.build",
    "maxpool_to_avgpool": "sharing.piecewise",
    "maxpool_to_relu": "sharing.piecewise",
    "piecewise_to_relu": "sharing.piecewise",
    "plan": "sharing.planning",
    "relu6_to_relu": "sharing.convert",
    "share": "sharing.convert",
    "smooth_to_relu": "sharing.piecewise",
    "data": None,
    "private": None,
    "zoo": None,
}

__getattr__ = partial(attribute, __name__, _MODULE_OF)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
