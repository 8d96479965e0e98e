"""What is left in a network of that which was to become ReLUs.

A rewritten network knows what was asked for. Its run shows calls that rewriting could not see, such as functions that
are looked up by name; these are refused, since the flag would be without effect for them.
"""

from collections.abc import Iterator

from torch import nn

from deepshare.errors import UnsupportedModelError
from deepshare.sharing.observe import Observation

_PIECEWISE = frozenset(
    {
        *("relu6", "hardtanh", "hardswish", "hardsigmoid", "leaky_relu", "prelu", "rrelu", "threshold", "clamp"),
        *("maximum", "minimum"),
    }
)
_SMOOTH = frozenset({"silu", "gelu", "mish", "softplus", "sigmoid", "tanh", "elu", "selu", "celu", "hardswish"})
_POOLS = frozenset({"max_pool1d", "max_pool2d", "max_pool3d"})
_ALL_POOLS = _POOLS | {"adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "amax"}
# For each request what it replaces, and how to write that. Adaptive pools and amax are exact as they are.
_REPLACED = {
    "piecewise-to-relu": (_PIECEWISE, "write it as the module of torch.nn, each call its own"),
    "smooth-to-relu": (_SMOOTH, "write it as the module of torch.nn, each call its own"),
    "maxpool exact": (_POOLS, "write it as nn.MaxPool2d, on maps (N, C, H, W)"),
    "maxpool shared": (_ALL_POOLS, "write it as nn.MaxPool2d, on maps (N, C, H, W)"),
    "maxpool avg": (_ALL_POOLS, "write it as nn.MaxPool2d or nn.AdaptiveMaxPool2d, on maps (N, C, H, W)"),
}


def requests_of(model: nn.Module) -> frozenset[str]:
    """Return what was asked for when a network was rewritten, as flags without dashes."""
    asked: frozenset[str] = vars(model).get("_rewritten", frozenset())
    return asked


def mark(model: nn.Module, requests: frozenset[str]) -> None:
    """Note on a network what was asked for."""
    vars(model)["_rewritten"] = requests


def check_leftovers(model: nn.Module, seen: Observation) -> None:
    """Check that nothing is left of what was to be rewritten.

    Raises:
        UnsupportedModelError: A call is; all are named.
    """
    problems = list(dict.fromkeys(_leftovers(model, seen)))
    if problems:
        raise UnsupportedModelError(problems)


def _leftovers(model: nn.Module, seen: Observation) -> Iterator[str]:
    asked = requests_of(model)
    for name, what in [*seen.smooth, *((other.name, other.what) for other in seen.others)]:
        for request, (replaced, cure) in _REPLACED.items():
            if request in asked and what in replaced:
                yield f"{name or type(model).__name__}: it still calls {what} after --{request}: {cure}"
