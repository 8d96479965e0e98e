"""Public names of a package, imported on first use."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def attribute(package: str, modules: Mapping[str, str | None], name: str) -> Any:
    """Find a public name; `partial` of this, without the name, is the `__getattr__` of a package.

    Args:
        package: The package.
        modules: For each public name the module of the package that has it; None if it is a module itself.
        name: The name.

    Raises:
        AttributeError: It is not public.
    """
    if name not in modules:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module = modules[name]
    if module is None:
        return import_module(f"{package}.{name}")
    return getattr(import_module(f"{package}.{module}"), name)
