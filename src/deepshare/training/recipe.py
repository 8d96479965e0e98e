"""Recipes as files: read, derived from one another, changed by flags, written back.

A recipe is one TOML file, packaged (``names()``) or the user's own. It may start with ``base = "another-recipe"`` and
hold only its differences; what is recorded is always the resolved whole.
"""

import copy
import json
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deepshare.errors import RecipeError
from deepshare.training.recipe_keys import explain, key_type, nearest, read_text
from deepshare.training.schema import PHASES, SHARING, Phase, Recipe

__all__ = ["Phase", "Recipe", "changed", "differences", "flat", "load_recipe", "names", "to_toml"]

_FOLDER = resources.files("deepshare.training") / "recipes"


def names() -> list[str]:
    """Return the names of the packaged recipes."""
    return sorted(file.name.removesuffix(".toml") for file in _FOLDER.iterdir() if file.name.endswith(".toml"))


def load_recipe(name_or_path: str | Path, overrides: Mapping[str, object] | None = None) -> Recipe:
    """Read a recipe, resolve its base and apply overrides.

    A phase of 0 epochs is left out.

    Args:
        name_or_path: A packaged name (``"digits"``) or a TOML file.
        overrides: Values by dotted key, as in ``{"gelu.epochs": 2}``. Text is read as the key's type;
            ``None``, or the text ``none`` for a key that may be absent, unsets it.

    Raises:
        RecipeError: A file, key or value that is wrong, named with what was expected.
    """
    file = _locate(name_or_path)
    values = _resolve(file, ())
    values.setdefault("name", file.name.removesuffix(".toml"))
    return _checked(values, overrides or {}, file.name)


def changed(recipe: Recipe, overrides: Mapping[str, object]) -> Recipe:
    """Return a recipe with overrides, as in `load_recipe`, checked again."""
    return _checked(recipe.model_dump(), overrides, recipe.name)


def to_toml(recipe: Recipe) -> str:
    """Write a resolved recipe as TOML; ``load_recipe`` reads the same recipe back."""
    return "\n".join(_lines(recipe.model_dump(mode="json", exclude_none=True), "")) + "\n"


def differences(old: Recipe, new: Recipe) -> dict[str, tuple[object, object]]:
    """Return the old and the new value of every key that differs, by dotted key; None is no value.

    What a recipe leaves to `Recipe.start` is what that gives, and nothing where no gates are shared.
    """
    before, after = (
        dict(flat(recipe.model_dump(mode="json")))
        | {"method.start": recipe.start if recipe.method.name in SHARING else None}
        for recipe in (old, new)
    )
    changed = (key for key in before | after if before.get(key) != after.get(key))
    return {key: (before.get(key), after.get(key)) for key in changed}


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield every value of nested sections with its dotted key."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _checked(values: dict[str, Any], overrides: Mapping[str, object], source: str) -> Recipe:
    for key, value in overrides.items():
        _override(values, key, value)
    for phase in PHASES:
        if isinstance(values.get(phase), dict) and values[phase].get("epochs") == 0:
            del values[phase]
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise RecipeError(f"{source}: {explain(error.errors(include_url=False))}") from None


def _locate(name_or_path: str | Path) -> Traversable:
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml"):
        path = Path(name_or_path)
        if not path.is_file():
            raise RecipeError(f"{path}: there is no such recipe file")
        return path
    if text not in names():
        raise RecipeError(f'no recipe is called "{text}"{nearest(text, names())} (`deepshare recipes` lists them)')
    return _FOLDER / f"{text}.toml"


def _resolve(file: Traversable, seen: tuple[str, ...]) -> dict[str, Any]:
    if str(file) in seen:
        raise RecipeError(f"{file.name}: its base leads back to itself")
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{file.name}: not a TOML file: {error}") from None
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise RecipeError(f"{file.name}: base: expected the name of a recipe, got {base!r}")
    beside = file.parent / base if isinstance(file, Path) and base.endswith(".toml") else base
    return _merge(_resolve(_locate(beside), (*seen, str(file))), values)


def _merge(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _override(values: dict[str, Any], key: str, value: object) -> None:
    wanted = key_type(key)
    value = read_text(value, wanted) if isinstance(value, str) else value
    *path, last = key.split(".")
    for part in path:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            return  # the file has a value where a section belongs, and the recipe's own check says so
    if value is None:
        values.pop(last, None)
    else:
        values[last] = copy.deepcopy(value)  # later keys may reach into it


def _lines(values: Mapping[str, Any], section: str) -> list[str]:
    lines = [f"{key} = {_value(value)}" for key, value in values.items() if not isinstance(value, dict) and value != []]
    for key, value in values.items():
        if isinstance(value, dict) and value:
            lines += ["", f"[{section}{key}]", *_lines(value, f"{section}{key}.")]
    return lines


def _value(value: object) -> str:
    # TOML writes basic strings, numbers, booleans and arrays as JSON does, save that DEL is escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
