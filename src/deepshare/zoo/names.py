"""Networks by name; those of timm, torchvision and segmentation-models have a prefix."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

from torch import nn

from deepshare.errors import ModelNameError
from deepshare.text import nearest
from deepshare.zoo.deeplab import deeplabv3_mobilenetv2
from deepshare.zoo.resnet import hybrenet, resnet18
from deepshare.zoo.wide_resnet import wide_resnet

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Bridge:
    """Adapter of one library: its model names, builder, input sizes and names of common arguments."""

    names: Callable[[], list[str]]
    check: Callable[[str], None]
    build: Callable[..., nn.Module]
    input_size: Callable[[str], Shape]
    words: dict[str, str]


def check_known(name: str, known: Iterable[str], where: str) -> None:
    """Check that a name is known.

    Raises:
        ModelNameError: It is not; the message suggests the closest name.
    """
    names = list(known)
    if name not in names:
        raise ModelNameError(f'{where} has no "{name}"{nearest(name, names, cutoff=0)}')


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        package = "segmentation-models-pytorch" if name == "segmentation_models_pytorch" else name
        raise ModelNameError(f"{package} models need more packages ({error}): pip install deepshare[zoo]") from error
    except (ImportError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelNameError(
            f"{name} does not work with the installed torch ({reason}): install a matching build"
        ) from error


def _timm_names() -> list[str]:
    names: list[str] = _library("timm").list_models()
    return names


def _timm_check(name: str) -> None:
    timm = _library("timm")
    if not timm.is_model(name):
        check_known(name, timm.list_models(), "timm")
    architecture, dot, tag = name.partition(".")
    tags = [one.partition(".")[2] for one in timm.list_models(f"{architecture}.*", pretrained=True)] if dot else []
    if dot and tag not in tags:
        raise ModelNameError(f"timm:{architecture} has no tag {tag}: take one of {', '.join(tags)}, or none")


def _timm_build(name: str, **arguments: Any) -> nn.Module:
    model: nn.Module = _library("timm").create_model(name, pretrained=False, **arguments)
    return model


def _timm_input_size(name: str) -> Shape:
    channels, height, width = _library("timm").get_pretrained_cfg(name).input_size
    return channels, height, width


def _torchvision_names() -> list[str]:
    models = _library("torchvision").models
    names: list[str] = models.list_models(module=models) + models.list_models(module=models.segmentation)
    return names


def _torchvision_build(name: str, **arguments: Any) -> nn.Module:
    quiet: dict[str, Any] = {"weights": None}
    if "segmentation" in _library("torchvision").models.get_model_builder(name).__module__:
        quiet["weights_backbone"] = None
    if name in ("googlenet", "inception_v3"):
        # Their own initialisation takes many seconds and warns; PyTorch's default works as well.
        quiet["init_weights"] = False
    model: nn.Module = _library("torchvision").models.get_model(name, **quiet, **arguments)
    return model


def _torchvision_input_size(name: str) -> Shape:
    transform = _library("torchvision").models.get_model_weights(name).DEFAULT.transforms()
    size = (getattr(transform, "crop_size", None) or transform.resize_size)[0]
    return 3, size, size


def _smp_architectures() -> list[str]:
    mapping = _library("segmentation_models_pytorch").MODEL_ARCHITECTURES_MAPPING
    return [architecture.__name__ for architecture in mapping.values()]


def _smp_encoders() -> list[str]:
    return list(_library("segmentation_models_pytorch").encoders.encoders)


def _smp_names() -> list[str]:
    return [f"{architecture}/{encoder}" for architecture in _smp_architectures() for encoder in _smp_encoders()]


def _smp_check(name: str) -> None:
    architecture, slash, encoder = name.partition("/")
    check_known(architecture, _smp_architectures(), "segmentation-models-pytorch")
    if not slash:
        raise ModelNameError(f"smp:{name} lacks its encoder: write smp:{name}/resnet18")
    timm_encoders = [f"tu-{model}" for model in _timm_names()] if encoder.startswith("tu-") else []
    check_known(encoder, _smp_encoders() + timm_encoders, f"segmentation-models-pytorch's {architecture}")


def _smp_build(name: str, **arguments: Any) -> nn.Module:
    architecture, _, encoder = name.partition("/")
    builder = getattr(_library("segmentation_models_pytorch"), architecture)
    unknown = arguments.keys() - signature(builder).parameters.keys()
    if unknown and not encoder.startswith("tu-"):
        # Only timm encoders take further arguments; others would ignore them.
        raise ModelNameError(f"smp:{name} does not take {', '.join(sorted(unknown))}")
    model: nn.Module = builder(encoder_name=encoder, encoder_weights=None, **arguments)
    return model


BRIDGES = {
    "timm": Bridge(
        _timm_names,
        _timm_check,
        _timm_build,
        _timm_input_size,
        {"channels": "in_chans"},
    ),
    "torchvision": Bridge(
        _torchvision_names,
        lambda name: check_known(name, _torchvision_names(), "torchvision"),
        _torchvision_build,
        _torchvision_input_size,
        {},
    ),
    "smp": Bridge(
        _smp_names,
        _smp_check,
        _smp_build,
        lambda _: (3, 256, 256),
        {"num_classes": "classes", "channels": "in_channels"},
    ),
}


def _code_factory(module: str, name: str) -> Callable[..., nn.Module]:
    """A function or class of the user's own code; the current folder is searched like that of a script."""
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        factory: Callable[..., nn.Module] | None = getattr(import_module(module), name, None)
    except (ImportError, ValueError) as error:
        libraries = ", ".join(BRIDGES)
        raise ModelNameError(
            f"{module}:{name} is neither of a library ({libraries}) nor of a module that can be imported ({error}): "
            "run in the folder of the module, or install it"
        ) from error
    if not callable(factory):
        raise ModelNameError(f"{module} has no function or class {name}: give PACKAGE.MODULE:FACTORY")
    return factory


def _code_build(module: str, name: str, **arguments: Any) -> nn.Module:
    factory = _code_factory(module, name)
    known = signature(factory).parameters
    if "num_classes" not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
        arguments.pop("num_classes", None)  # the pipeline checks the number of outputs
    model = factory(**arguments)
    if not isinstance(model, nn.Module):
        raise ModelNameError(f"{module}:{name} returns a {type(model).__name__}, not a torch module")
    for key, value in model.state_dict().items():
        if value.is_floating_point() and not value.is_meta and not bool(value.isfinite().all()):
            raise ModelNameError(
                f"{module}:{name} returns a network whose {key} holds numbers that are not finite: look at its weights"
            )
    return model


def arguments_of(name: str) -> tuple[str, ...]:
    """Names of the arguments of a factory of one's own code; none for networks of libraries.

    Raises:
        ModelNameError: The name is unknown.
    """
    module, _, factory = name.partition(":")
    bridge, _ = _resolve(name)
    own = bridge is not None and module not in BRIDGES
    return tuple(signature(_code_factory(module, factory)).parameters) if own else ()


def promises_weights(name: str) -> bool:
    """Whether a name is that of weights, which `build` does not fetch."""
    return name.startswith("timm:") and "." in name


def _code_input_size(module: str, name: str) -> Shape:
    size = getattr(_code_factory(module, name), "input_size", None)
    if size is None:
        raise ModelNameError(f"{module}:{name} has no attribute input_size: give --input-size")
    channels, height, width = size
    return channels, height, width


@dataclass(frozen=True)
class _Own:
    build: Callable[..., nn.Module]
    input_size: Shape


OWN = {
    "resnet10": _Own(partial(resnet18, depth=10), (3, 32, 32)),
    "resnet18": _Own(resnet18, (3, 32, 32)),
    "resnet26": _Own(partial(resnet18, depth=26), (3, 32, 32)),
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
        name: One of `known_names()`, or `timm:NAME`, `torchvision:NAME` or `smp:ARCHITECTURE/ENCODER`; or
            `PACKAGE.MODULE:FACTORY`, a function or class of your own code that returns the network.
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
    ('resnet10', 'resnet18', 'resnet26')
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
    misspelt = "." not in prefix and nearest(prefix, list(BRIDGES), cutoff=0.7) and not find_spec(prefix)
    if prefix not in BRIDGES and (not misspelt or Path(f"{prefix}.py").is_file()):
        _code_factory(prefix, rest)
        return Bridge(list, lambda _: None, partial(_code_build, prefix), partial(_code_input_size, prefix), {}), rest
    check_known(prefix, BRIDGES, "the list of libraries (timm, torchvision, smp)")
    BRIDGES[prefix].check(rest)
    return BRIDGES[prefix], rest
