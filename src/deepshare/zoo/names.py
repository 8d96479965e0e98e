"""Networks by name; those of other libraries have a prefix."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from deepshare.errors import ModelNameError
from deepshare.zoo.bridges import BRIDGES, Bridge, Shape, check_known
from deepshare.zoo.deeplab import deeplabv3_mobilenetv2
from deepshare.zoo.resnet import hybrenet, resnet18
from deepshare.zoo.wide_resnet import wide_resnet


@dataclass(frozen=True)
class _Own:
    build: Callable[..., nn.Module]
    input_size: Shape


OWN = {
    "resnet10": _Own(partial(resnet18, depth=10), (3, 32, 32)),
    "resnet18": _Own(resnet18, (3, 32, 32)),
    "resnet34": _Own(partial(resnet18, depth=34), (3, 32, 32)),
    "hrn-5x5x3": _Own(hybrenet, (3, 32, 32)),
    "hrn-2x5x3": _Own(partial(hybrenet, scales=(2, 5, 3), width=32), (3, 32, 32)),
    "hrn-5x7x2": _Own(partial(hybrenet, scales=(5, 7, 2)), (3, 32, 32)),
    "hrn-6x6x2": _Own(partial(hybrenet, scales=(6, 6, 2)), (3, 32, 32)),
    "hrn-7x5x2": _Own(partial(hybrenet, scales=(7, 5, 2)), (3, 32, 32)),
    "wrn22-8": _Own(wide_resnet, (3, 32, 32)),
    "deeplabv3-mobilenetv2": _Own(deeplabv3_mobilenetv2, (3, 512, 512)),
}


def build(name: str, **arguments: Any) -> nn.Module:
    """Build a network by name, with random weights.

    Args:
        name: One of `known_names()`, or `timm:NAME`, `torchvision:NAME` or `smp:ARCHITECTURE/ENCODER`.
        **arguments: Passed to the builder. `num_classes` and `channels` (of the image) work for every library that has
            such an argument; all others have the library's own names.

    Raises:
        ModelNameError: The name is unknown, its library is missing, or it does not take these arguments.

    >>> build("resnet10", num_classes=10, width=8).fc.out_features
    10
    """
    bridge, rest = _resolve(name)
    builder = partial(bridge.build, rest) if bridge else OWN[name].build
    words = bridge.words if bridge else {}
    translated = {words.get(key, key): value for key, value in arguments.items()}
    try:
        return builder(**translated)
    except ModelNameError:
        raise
    except Exception as error:  # other libraries may raise anything
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items()) or "no arguments"
        reason = str(error).partition("\n")[0]
        raise ModelNameError(f"{name} cannot be built with {given}: {reason}") from error


def default_input_size(name: str) -> Shape:
    """Return the default input size (channels, height, width) of a network.

    Raises:
        ModelNameError: The name is unknown or its library is missing.

    >>> default_input_size("wrn22-8")
    (3, 32, 32)
    """
    bridge, rest = _resolve(name)
    return bridge.input_size(rest) if bridge else OWN[name].input_size


def known_names(library: str | None = None) -> tuple[str, ...]:
    """List the names known to `build`.

    Args:
        library: None for the networks of this package, or "timm", "torchvision" or "smp".

    Raises:
        ModelNameError: The library is unknown or missing.

    >>> known_names()[:3]
    ('resnet10', 'resnet18', 'resnet34')
    """
    if library is None:
        return tuple(OWN)
    check_known(library, BRIDGES, "the list of libraries (timm, torchvision, smp)")
    return tuple(f"{library}:{name}" for name in BRIDGES[library].names())


def _resolve(name: str) -> tuple[Bridge | None, str]:
    prefix, colon, rest = name.partition(":")
    if not colon:
        check_known(name, OWN, "the zoo (besides timm:NAME, torchvision:NAME and smp:ARCHITECTURE/ENCODER)")
        return None, name
    check_known(prefix, BRIDGES, "the list of libraries (timm, torchvision, smp)")
    BRIDGES[prefix].check(rest)
    return BRIDGES[prefix], rest
