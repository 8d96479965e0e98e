"""Networks in float64, in which they are translated, whatever precision their forward asks for."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from deepshare.sharing.observe import copy_of

_CASTS = frozenset({"to", "float", "half", "bfloat16", "type", "type_as"})


def in_double(model: nn.Module) -> nn.Module:
    """Return a copy for evaluation whose tensors, also those that are neither parameters nor buffers, are float64."""
    network = copy_of(model).double().cpu().eval()
    for module in network.modules():
        loose = {k: v for k, v in vars(module).items() if isinstance(v, Tensor) and v.is_floating_point()}
        vars(module).update({name: tensor.double().cpu() for name, tensor in loose.items()})
    return network


class Double(TorchFunctionMode):
    """Within it casts to another precision do nothing, and tensors that the forward makes are float64."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, Tensor) or not result.is_floating_point() or result.dtype == torch.float64:
            return result
        first = args[0] if args else None
        cast = getattr(func, "__name__", "") in _CASTS and isinstance(first, Tensor) and first.dtype == torch.float64
        return first if cast else result.double()
