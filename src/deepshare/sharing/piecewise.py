"""Other activations and max-pooling written as ReLUs, so that their gates are sites like any other.

Whatever is piecewise linear is ReLUs: relu6(x) = relu(x) - relu(x - 6), and max(a, b) = b + relu(a - b). Such a network
computes the same up to rounding. To replace smooth activations by ReLUs is another kind of change: finetune after it.
"""

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from deepshare.errors import DeepShareError, UnsupportedModelError
from deepshare.sharing.functions import GivenPReLU, Make, Maximum, Minimum, is_stateless, replace_functions
from deepshare.sharing.sites import BoundReLU, PoolReLU, mark, requests_of

MaxPool = Literal["exact", "shared", "avg"]

# The version of what `rewritten` reaches. Weights record it, since the same request once gave another network.
REACH = 2
_SINCE_2 = (nn.AdaptiveMaxPool2d, nn.Threshold, GivenPReLU, Maximum, Minimum)

# timm has classes of its own under the same names.
_RECTIFIED = frozenset(
    {"SiLU", "Swish", "GELU", "GELUTanh", "QuickGELU", "ELU", "SELU", "CELU", "Mish", "Hardswish", "Softplus"}
)


class Clamped(nn.Module):
    """x between two numbers: low + relu(x - low) - relu(x - high); without the ReLU of a bound that is infinite.

    Of a sequence (N, C, L) there are C L gates.
    """

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.bounds = low, high
        if low > -math.inf:
            self.low = nn.ReLU()
        if high < math.inf:
            self.high = BoundReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Clamp x."""
        if x.dim() == 3:
            return self.forward(x.flatten(1)).view(x.shape)
        low, high = self.bounds
        y: Tensor = self.low(x - low if low else x) if low > -math.inf else x
        if high < math.inf:
            y = y - self.high(x - high)
        return y + low if low and low > -math.inf else y


class HardSigmoid(nn.Module):
    """(relu(x + 3) - relu(x - 3)) / 6; of a sequence (N, C, L), such as weights of channels, with C L gates."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = BoundReLU(), BoundReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to x."""
        if x.dim() == 3:
            return HardSigmoid.forward(self, x.flatten(1)).view(x.shape)
        y: Tensor = (self.low(x + 3) - self.high(x - 3)) / 6
        return y


class HardSwish(HardSigmoid):
    """x times its hard sigmoid."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to x."""
        return x * super().forward(x)


class LeakyReLU(nn.Module):
    """slope x + (1 - slope) relu(x)."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = slope
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to x."""
        y: Tensor = self.slope * x + (1 - self.slope) * self.relu(x)
        return y


class PReLU(nn.Module):
    """A leaky ReLU with learned slopes, under their key in nn.PReLU."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to x."""
        slope = self.weight.view(-1, *[1] * (x.dim() - 2))
        y: Tensor = slope * x + (1 - slope) * self.relu(x)
        return y


class TwoSlopes(nn.Module):
    """A leaky ReLU whose slopes come with its input."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """Apply it to x."""
        slope = weight.view(-1, *[1] * (x.dim() - 2))
        y: Tensor = slope * x + (1 - slope) * self.relu(x)
        return y


class Larger(nn.Module):
    """The larger of two tensors: b + relu(a - b)."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = BoundReLU()

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Compare a with b."""
        y: Tensor = b + self.relu(a - b)
        return y


class Smaller(Larger):
    """The smaller of two tensors: a - relu(a - b)."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Compare a with b."""
        y: Tensor = a - self.relu(a - b)
        return y


class PairwiseMaxPool(nn.Module):
    """Max-pooling by comparisons of two: along rows first, whose maxima neighbouring windows share, then along columns.

    Beyond its edge the map goes on as it ends, which changes no maximum.
    """

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding = (_pair(v) for v in (pool.kernel_size, pool.stride, pool.padding))
        self.ceil = pool.ceil_mode
        self.rows, self.columns = (nn.ModuleList(PoolReLU() for _ in range(k - 1)) for k in reversed(self.kernel))

    def forward(self, x: Tensor) -> Tensor:
        """Pool x of shape (N, C, H, W)."""
        return self._along(self._along(x, 3, self.rows), 2, self.columns)

    def _along(self, x: Tensor, axis: int, relus: Iterable[nn.Module]) -> Tensor:
        k, stride, padding = (values[axis - 2] for values in (self.kernel, self.stride, self.padding))
        size = x.shape[axis]
        count = (size + 2 * padding - k + (stride - 1 if self.ceil else 0)) // stride + 1
        if self.ceil and (count - 1) * stride >= size + padding:  # the last window would begin beyond the map
            count -= 1
        after = max(0, (count - 1) * stride + k - padding - size)
        if padding or after:
            x = F.pad(x, (padding, after, 0, 0) if axis == 3 else (0, 0, padding, after), mode="replicate")
        ends = [slice(j, j + (count - 1) * stride + 1, stride) for j in range(k)]
        parts = [x[:, :, :, end] if axis == 3 else x[:, :, end] for end in ends]
        best = parts[0]
        for relu, part in zip(relus, parts[1:], strict=True):
            best = part + relu(best - part)
        return best

    def extra_repr(self) -> str:
        """Description in print(model)."""
        return f"kernel={self.kernel}, stride={self.stride}, padding={self.padding}"


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def piecewise_to_relu(model: nn.Module) -> nn.Module:
    """Return a copy of a model with ReLUs for ReLU6, Hardtanh, Hardsigmoid, Hardswish, LeakyReLU, RReLU and PReLU.

    Maxima and minima of two tensors are such, too. It computes the same up to rounding (RReLU as in evaluation), and
    keeps the keys of the state_dict. Functions, such as F.hardswish, clamp and abs, become modules of the block that
    calls them.

    Example:
        >>> from deepshare import find_sites
        >>> net = piecewise_to_relu(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU6()))
        >>> [site.name for site in find_sites(net, (3, 32, 32))]
        ['1.low', '1.high']
    """
    return rewritten(model, piecewise_to_relu=True)


def smooth_to_relu(model: nn.Module) -> nn.Module:
    """Return a copy of a model with ReLU for SiLU, GELU, ELU, Mish, Hardswish and their kin; finetune it.

    Sigmoid becomes a hard sigmoid and Tanh a clamp, each made of two ReLUs.
    """
    return rewritten(model, smooth_to_relu=True)


def maxpool_to_relu(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose nn.MaxPool2d are comparisons of two, each a site: equal up to rounding.

    Raises:
        UnsupportedModelError: A pool has a dilation, or returns indices.
    """
    return rewritten(model, maxpool="exact")


def maxpool_to_avgpool(model: nn.Module) -> nn.Module:
    """Return a copy of a model with average pooling instead of max-pooling; finetune it."""
    return rewritten(model, maxpool="avg")


def rewritten(
    model: nn.Module,
    *,
    piecewise_to_relu: bool = False,
    smooth_to_relu: bool = False,
    maxpool: MaxPool | None = None,
    reach: int = REACH,
) -> nn.Module:
    """Return a model with all wanted replacements; the model itself where none is wanted.

    Reach 1 is for networks that were trained by early versions: it leaves alone what these did not find.

    Raises:
        DeepShareError: The kind of max-pooling is unknown.
    """
    if maxpool is not None and maxpool not in get_args(MaxPool):
        raise DeepShareError(f"maxpool {maxpool!r} is unknown: give {', '.join(get_args(MaxPool))}")
    chosen: dict[str, tuple[bool, Make]] = {
        "smooth-to-relu": (smooth_to_relu, _rectified),
        "piecewise-to-relu": (piecewise_to_relu, _piecewise),
        f"maxpool {maxpool}": (maxpool is not None, _averaged if maxpool == "avg" else _pairwise),
    }
    asked = {request: make for request, (wanted, make) in chosen.items() if wanted}
    if not asked:
        return model
    if reach == 1:
        return _replaced(model, [_early(make) for make in asked.values()], reach)
    result = _replaced(model, list(asked.values()), reach)
    mark(result, requests_of(model) | asked.keys())
    return result


def _early(make: Make) -> Make:
    return lambda module: None if isinstance(module, _SINCE_2) else make(module)


def _piecewise(module: nn.Module) -> nn.Module | None:
    match module:
        case nn.Hardtanh():  # ReLU6 is one
            return Clamped(module.min_val, module.max_val)
        case nn.Hardsigmoid():
            return HardSigmoid()
        case nn.Hardswish():
            return HardSwish()
        case nn.LeakyReLU():
            return LeakyReLU(module.negative_slope)
        case nn.RReLU():
            return LeakyReLU((module.lower + module.upper) / 2)
        case nn.PReLU():
            return PReLU(module.weight)
        case nn.Threshold() if module.threshold == module.value:
            return Clamped(module.value, math.inf)
        case GivenPReLU():
            return TwoSlopes()
        case Maximum():
            return Larger()
        case Minimum():
            return Smaller()
    return None


def _rectified(module: nn.Module) -> nn.Module | None:
    if any(True for _ in module.children()) or any(True for _ in module.parameters()):
        return None
    match type(module).__name__:
        case "Sigmoid":
            return HardSigmoid()
        case "Tanh":
            return Clamped(-1.0, 1.0)
        case name if name in _RECTIFIED:
            return nn.ReLU()
    return None


def _pairwise(module: nn.Module) -> nn.Module | None:
    return PairwiseMaxPool(_plain(module)) if isinstance(module, nn.MaxPool2d) else None


def _averaged(module: nn.Module) -> nn.Module | None:
    if isinstance(module, nn.AdaptiveMaxPool2d) and not module.return_indices:
        return nn.AdaptiveAvgPool2d(module.output_size)
    if not isinstance(module, nn.MaxPool2d):
        return None
    pool = _plain(module)
    return nn.AvgPool2d(pool.kernel_size, pool.stride, pool.padding, pool.ceil_mode, count_include_pad=False)


def _plain(pool: nn.MaxPool2d) -> nn.MaxPool2d:
    if pool.dilation not in (1, (1, 1)) or pool.return_indices:
        raise UnsupportedModelError("max-pooling with a dilation, or with indices: leave them out")
    return pool


def _replaced(model: nn.Module, makes: Sequence[Make], reach: int) -> nn.Module:
    """Return a copy with other modules in the place of those, and of functions, for which a `make` has one."""
    result = nn.Sequential(copy.deepcopy(model))  # the model itself may be replaced
    made: dict[nn.Module, nn.Module] = {}
    for make in makes:
        for path, module in list(result.named_modules(remove_duplicate=False)):
            if not path:
                continue
            try:
                new = make(module)
            except UnsupportedModelError as error:
                raise UnsupportedModelError(f"{path.removeprefix('0.')}: {error}") from error
            if new is not None:
                # Under two paths it becomes two modules, whose sites differ, unless it has parameters to share.
                if module not in made or is_stateless(new):
                    made[module] = new.train(module.training)
                result.set_submodule(path, made[module])
    for path, module in list(result[0].named_modules()):
        replace_functions(module, path, makes, {type(new) for new in made.values()}, reach)
    return result[0]
