"""Sites: every ReLU call of a network, in the order of its forward pass."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, overload

from torch import nn

from deepshare.errors import UnsupportedModelError
from deepshare.sharing.observe import Call, Comparison, Inputs, Observation, check_input_size, observe
from deepshare.text import table

Kind = Literal["module", "reused", "function"]
Compares = Literal["sign", "bound", "pool"]

_PIECEWISE = frozenset(
    {
        *("relu6", "hardtanh", "hardswish", "hardsigmoid", "leaky_relu", "prelu", "rrelu", "threshold", "clamp"),
        *("maximum", "minimum"),
    }
)
_SMOOTH = frozenset({"silu", "gelu", "mish", "softplus", "sigmoid", "tanh", "elu", "selu", "celu", "hardswish"})
_POOLS = frozenset({"max_pool1d", "max_pool2d", "max_pool3d"})
_ALL_POOLS = _POOLS | {"adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "amax"}
# For each request to rewrite what it replaces, and how to write that. Adaptive pools and amax are exact as they are.
_REPLACED = {
    "piecewise-to-relu": (_PIECEWISE, "write it as the module of torch.nn, each call its own"),
    "smooth-to-relu": (_SMOOTH, "write it as the module of torch.nn, each call its own"),
    "maxpool exact": (_POOLS, "write it as nn.MaxPool2d, on maps (N, C, H, W)"),
    "maxpool shared": (_ALL_POOLS, "write it as nn.MaxPool2d, on maps (N, C, H, W)"),
    "maxpool avg": (_ALL_POOLS, "write it as nn.MaxPool2d or nn.AdaptiveMaxPool2d, on maps (N, C, H, W)"),
}


class BoundReLU(nn.ReLU):
    """A ReLU that compares with another number than zero, such as the upper bound of a ReLU6, or two tensors."""


class PoolReLU(nn.ReLU):
    """A ReLU that compares two neighbours in max-pooling."""


RELUS: dict[Compares, type[nn.ReLU]] = {"sign": nn.ReLU, "bound": BoundReLU, "pool": PoolReLU}


@dataclass(frozen=True)
class Site:
    """One ReLU call.

    Attributes:
        name: Path of its activation in the shared network.
        channels: Channels of its input.
        height: Height of its map; 1 for an input of shape (N, C).
        width: Width of its map.
        kind: "module", an nn.ReLU called once; "reused", one called several times; or "function".
        block: Path of its residual block, the innermost module that adds; "" outside of one.
        compares: "sign", as a ReLU does; "bound", with another number than zero; or "pool", two neighbours. The gates
            of the last two mean nothing to other sites, so that each leads a group of its own. Files do not
            store it, since the groups imply it.
    """

    name: str
    channels: int
    height: int
    width: int
    kind: Kind
    block: str = ""
    compares: Compares = field(default="sign", compare=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.channels, self.height, self.width

    @property
    def positions(self) -> int:
        """Neurons of one channel: the gates of one prototype."""
        return self.height * self.width

    @property
    def neurons(self) -> int:
        """Neurons of the site: the gates of a plain ReLU."""
        return self.channels * self.positions


@dataclass(frozen=True)
class Place:
    """Location of a site in the model: the modules to swap, or the caller to trace.

    Attributes:
        site: The site.
        caller: Path of the module whose forward calls it.
        attributes: Paths to replace by the new module; empty if the caller must be traced.
        position: Index among the ReLU calls of its caller.
        runs: Number of calls of the caller in one forward pass.
        inputs: Outline of the arguments of the caller.
        layers: Paths of the convolutions and linear layers that it activates, directly or through normalisation,
            pooling, sums and similar, but not through another activation. Empty if it reads only activations.
        rewrites: The activation must overwrite its input.
    """

    site: Site
    caller: str
    attributes: tuple[str, ...]
    position: int
    runs: int
    inputs: Inputs
    layers: tuple[str, ...]
    rewrites: bool


@dataclass(frozen=True)
class Sites(Sequence[Site]):
    """The sites of a network for one input size, and its other operations that compare."""

    input_size: tuple[int, ...]
    places: tuple[Place, ...] = field(repr=False)
    others: tuple[Comparison, ...] = ()

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites, in order."""
        return tuple(place.site for place in self.places)

    @property
    def neurons(self) -> int:
        """All ReLUs: the gates of the plain network."""
        return sum(site.neurons for site in self.sites)

    @overload
    def __getitem__(self, index: int) -> Site: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Site, ...]: ...
    def __getitem__(self, index: int | slice) -> Site | tuple[Site, ...]:
        return self.sites[index]

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "input_size": list(self.input_size),
            "neurons": self.neurons,
            "sites": [asdict(site) | {"neurons": site.neurons} for site in self.sites],
            "others": [asdict(other) for other in self.others],
        }

    def __str__(self) -> str:
        rows = [
            (site.name, str(site.channels), f"{site.height}x{site.width}", f"{site.neurons:,}", site.kind)
            for site in self.sites
        ]
        shape = "x".join(map(str, self.input_size))
        text = table(("site", "channels", "map", "ReLUs", "reached as"), rows, align="<>>><")
        lines = [text, f"{self.neurons:,} ReLUs at {len(self)} sites, input {shape}", self.also_compares()]
        return "\n".join(filter(None, lines))

    def also_compares(self) -> str:
        """A line with the other operations that compare; empty where there are none."""
        totals: Counter[str] = Counter()
        for other in self.others:
            totals[other.what] += other.comparisons
        said = ", ".join(f"{what} ({count:,})" for what, count in totals.items())
        return f"also compares: {said}" if said else ""


def find_sites(model: nn.Module, input_size: Sequence[int]) -> Sites:
    """Find every ReLU call of a model, in order, by running it once on a meta copy.

    Args:
        model: Any network; it is not modified.
        input_size: Size of one input without the batch, such as (3, 32, 32).

    Returns:
        The sites, and in `others` all other operations that compare.

    Raises:
        UnsupportedModelError: The model does not run on this size, a ReLU has an input other than (N, C, H, W) or
            (N, C), or something is left that was to be rewritten.

    Example:
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        >>> [(site.name, site.shape) for site in find_sites(net, (3, 32, 32))]
        [('1', (8, 32, 32))]
    """
    seen = observe(model, input_size)
    _check(model, seen)
    _check_leftovers(model, seen)
    places = tuple(_places(model, seen))
    return Sites(check_input_size(input_size), places, seen.others)


def requests_of(model: nn.Module) -> frozenset[str]:
    """Return what was asked for when a network was rewritten, as flags without dashes."""
    asked: frozenset[str] = vars(model).get("_rewritten", frozenset())
    return asked


def mark(model: nn.Module, requests: frozenset[str]) -> None:
    """Note on a network what was asked for."""
    vars(model)["_rewritten"] = requests


def _check_leftovers(model: nn.Module, seen: Observation) -> None:
    """Check that nothing is left of what was to be rewritten, such as functions that are looked up by name.

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


_LAYOUTS = {
    2: "after one-dimensional layers write it as maps of height 1 (unsqueeze(2), Conv2d with kernels 1xK)",
    4: "volumes and three-dimensional convolutions are not supported",
}


def _check(model: nn.Module, seen: Observation) -> None:
    problems = [
        f"{call.relu or call.caller or 'the model'}: its ReLU sees an input of shape "
        f"(N, {', '.join(map(str, call.shape))}), but gates are shared across the channels of (N, C, H, W) or (N, C): "
        + _LAYOUTS.get(len(call.shape), "permute it to that layout")
        for call in seen.calls
        if len(call.shape) not in (1, 3)
    ]
    for relu in dict.fromkeys(call.relu for call in seen.calls if call.relu):
        module = model.get_submodule(relu)
        if module._forward_hooks or module._forward_pre_hooks:
            problems.append(f"{relu}: it has forward hooks, which would be lost with it: remove them first")
    if any(call.relu == "" for call in seen.calls):
        problems.append("the model is a ReLU and nothing else: wrap it in a network")
    if problems:
        raise UnsupportedModelError(problems)


def _places(model: nn.Module, seen: Observation) -> Iterator[Place]:
    aliases = defaultdict(list)
    for path, module in model.named_modules(remove_duplicate=False):
        aliases[id(module)].append(path)
    per_relu = Counter(call.relu for call in seen.calls)
    per_pair = Counter((call.caller, call.relu) for call in seen.calls)
    position: Counter[str] = Counter()
    taken: set[str] = set()
    for call in seen.calls:
        attributes = _attributes(model, call, aliases, per_relu[call.relu], per_pair[call.caller, call.relu])
        name = attributes[0] if attributes else _fresh_name(model, call, taken)
        taken.add(name)
        kind: Kind = "function" if call.relu is None else "module" if per_relu[call.relu] == 1 else "reused"
        channels, height, width = (*call.shape, 1, 1)[:3]
        site = Site(name, channels, height, width, kind, _block(name, seen.adds), _compares(model, call))
        runs, inputs = seen.runs[call.caller], seen.inputs[call.caller]
        yield Place(site, call.caller, attributes, position[call.caller], runs, inputs, call.layers, call.rewrites)
        position[call.caller] += 1


def _attributes(
    model: nn.Module, call: Call, aliases: dict[int, list[str]], relu_calls: int, pair_calls: int
) -> tuple[str, ...]:
    """Paths that can be replaced by a new module; empty if there are none."""
    if call.relu is None:
        return ()
    paths = aliases[id(model.get_submodule(call.relu))]
    if relu_calls == 1:
        return tuple(paths)
    children = tuple(path for path in paths if path.rpartition(".")[0] == call.caller)
    return children if pair_calls == 1 else ()


def _fresh_name(model: nn.Module, call: Call, taken: set[str]) -> str:
    base = call.relu.rpartition(".")[2] if call.relu else "relu"
    owner = model.get_submodule(call.caller)
    number = 1
    while True:
        attribute = f"{base}_{number}"
        path = f"{call.caller}.{attribute}" if call.caller else attribute
        if path not in taken and not hasattr(owner, attribute):
            return path
        number += 1


def _block(name: str, adds: frozenset[str]) -> str:
    around = [path for path in adds if path and name.startswith(path + ".")]
    return max(around, key=len, default="")


def _compares(model: nn.Module, call: Call) -> Compares:
    kind = type(None if call.relu is None else model.get_submodule(call.relu))
    return next((name for name, relu in RELUS.items() if relu is kind), "sign")
