"""Recipes as files: read, derived from one another, changed by flags, written back; problems in plain words.

A recipe is one TOML file, packaged (``names()``) or the user's own. It may start with ``base = "another-recipe"`` and
hold only its differences; run folders record the resolved recipe.
"""

import copy
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from deepshare.errors import RecipeError
from deepshare.text import nearest
from deepshare.training.recipe.schema import PHASES, RENAMED, Phase, Recipe, with_new_names

__all__ = ["Phase", "Recipe", "changed", "differences", "flat", "load_recipe", "names", "to_toml"]

Layer = tuple[str, dict[str, Any]]  # name and contents of a file

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
        RecipeError: A file, key or value is wrong; the message names it and the expected one.
    """
    file = _locate(name_or_path)
    layers = _layers(file, ())
    values: dict[str, Any] = {"name": file.name.removesuffix(".toml")}
    for _, layer in reversed(layers):
        values = _merge(values, layer)
    return _checked(values, overrides or {}, layers)


def changed(recipe: Recipe, overrides: Mapping[str, object]) -> Recipe:
    """Return a recipe with overrides, as in `load_recipe`, checked again."""
    return _checked(recipe.model_dump(exclude_none=True), overrides, [(recipe.name, {})])


def to_toml(recipe: Recipe) -> str:
    """Write a resolved recipe as TOML; ``load_recipe`` reads the same recipe back."""
    return "\n".join(_lines(recipe.model_dump(mode="json", exclude_none=True), "")) + "\n"


def differences(old: Recipe, new: Recipe) -> dict[str, tuple[object, object]]:
    """Return the old and the new value of every key that differs, by dotted key; None is no value.

    An option that is left to the method counts with the value that the method gives it, see `Recipe.resolved`.
    """
    before, after = (dict(flat(recipe.model_dump(mode="json"))) | recipe.resolved for recipe in (old, new))
    changed = (key for key in before | after if before.get(key) != after.get(key))
    return {key: (before.get(key), after.get(key)) for key in changed}


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield every value of nested sections with its dotted key."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _checked(values: dict[str, Any], overrides: Mapping[str, object], layers: Sequence[Layer]) -> Recipe:
    values = copy.deepcopy(values)  # the layers must stay as they are
    overrides = {current(key): value for key, value in overrides.items()}
    for key, value in overrides.items():
        _override(values, key, value)
    for phase in PHASES:
        if isinstance(values.get(phase), dict) and values[phase].get("epochs") == 0:
            del values[phase]
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        found: dict[str, list[ErrorDetails]] = {}
        for problem in error.errors(include_url=False):
            found.setdefault(_source(problem["loc"], overrides, layers), []).append(problem)
        raise RecipeError("; ".join(f"{source}: {explain(problems)}" for source, problems in found.items())) from None


def _source(location: Sequence[int | str], overrides: Mapping[str, object], layers: Sequence[Layer]) -> str:
    """Return the file of a wrong key: the first of those that have most of its sections."""
    key = ".".join(map(str, location))
    if any(f"{key}.".startswith(f"{given}.") for given in overrides):
        return layers[0][0]
    return max(layers, key=lambda layer: _depth(layer[1], location))[0]


def _depth(values: object, location: Sequence[int | str]) -> int:
    if not location or not isinstance(values, dict) or location[0] not in values:
        return 0
    return 1 + _depth(values[location[0]], location[1:])


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


def _layers(file: Traversable, seen: tuple[str, ...]) -> list[Layer]:
    """Return the contents of a file and of its bases, the file first."""
    name = file.name if str(file) == str(_FOLDER / file.name) else str(file)
    if str(file) in seen:
        raise RecipeError(f"{name}: its base leads back to itself")
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{name}: not a TOML file: {error}") from None
    base = values.pop("base", None)
    if base is None:
        return [(name, _renamed(values))]
    if not isinstance(base, str):
        raise RecipeError(f"{name}: base: expected the name of a recipe, got {base!r}")
    beside = file.parent / base if isinstance(file, Path) and base.endswith(".toml") else base
    return [(name, _renamed(values)), *_layers(_locate(beside), (*seen, str(file)))]


def _renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace old names of keys, so that a recipe and its base use the same."""
    return {
        key: (with_new_names(_renamed(value)) if key == "model" else _renamed(value))
        if isinstance(value, dict)
        else value
        for key, value in values.items()
    }


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


def current(key: str) -> str:
    """Return the current name of a dotted key that older recipes may have under another.

    >>> current("teacher.model.classes")
    'teacher.model.num_classes'
    """
    section, dot, last = key.rpartition(".")
    return f"{section}{dot}{RENAMED.get(last, last)}" if section.rpartition(".")[2] == "model" else key


def key_type(key: str) -> Any:
    """Return the type of a dotted key, or raise a RecipeError that suggests a known one."""
    model: type[BaseModel] = Recipe
    parts = key.split(".")
    for index, part in enumerate(parts):
        field = model.model_fields.get(part)
        if field is None:
            raise RecipeError(_unknown(parts[: index + 1], model))
        if index == len(parts) - 1:
            return field.annotation
        inner = _section(field.annotation)
        if inner is None:
            return _item_type(key, ".".join(parts[: index + 1]), field.annotation)
        model = inner
    raise RecipeError("an override needs a key")


def read_text(text: str, wanted: Any) -> object:
    """Parse the text of a flag as a type; text of another type is left for validation to refuse."""
    if text == "none" and type(None) in get_args(wanted):
        return None
    try:
        parsed: object = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return text if _accepts(wanted, text) and not _accepts(wanted, parsed) else parsed


def explain(errors: Iterable[ErrorDetails]) -> str:
    """Return every problem of a recipe in one line, each with its key."""
    expected: dict[str, list[str]] = {}
    problems: list[str] = []
    for error in errors:
        location = [str(part) for part in error["loc"]]
        key, model = _walk(location)
        if error["type"] == "extra_forbidden":
            problems.append(_unknown(location, model))
        elif error["type"] == "missing":
            problems.append(f"{key}: missing")
        elif error["type"] == "value_error":
            problems.append(f"{key}: {error['ctx']['error']}" if key else str(error["ctx"]["error"]))
        else:
            got = f"{key}: got {json.dumps(error['input'], default=str)}, expected"
            expected.setdefault(got, []).append(_wanted(error))
    problems += [f"{got} {' or '.join(dict.fromkeys(types))}" for got, types in expected.items()]
    return "; ".join(problems)


def _section(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _item_type(key: str, field: str, annotation: Any) -> Any:
    is_table = getattr(annotation, "__origin__", None) is dict
    if not is_table or key.count(".") != field.count(".") + 1:
        raise RecipeError(f"{key}: {field} is a value, not a section")
    return get_args(annotation)[1]


def _accepts(wanted: Any, value: object) -> bool:
    try:
        TypeAdapter(wanted).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def _walk(location: Sequence[str]) -> tuple[str, type[BaseModel]]:
    """Return the dotted key of an error's location, without the types that pydantic adds, and its last section."""
    model: type[BaseModel] = Recipe
    key: list[str] = []
    for part in location:
        field = model.model_fields.get(part)
        if field is None:
            break
        key.append(part)
        inner = _section(field.annotation)
        if inner is None:
            item = location[len(key) : len(key) + 1]
            key += [name for name in item if name.isdigit() or part == "arguments"]
            break
        model = inner
    return ".".join(key), model


def _unknown(location: Sequence[str], model: type[BaseModel]) -> str:
    prefix = "".join(f"{part}." for part in location[:-1])
    key = f"{prefix}{location[-1]}"
    if prefix == "model.":
        return f"{key}: there is no such key; the network's own arguments are model.arguments.{location[-1]}"
    inner = [name for name, field in Recipe.model_fields.items() if _has(field.annotation, location[-1])]
    if not prefix and inner:
        return f"{key}: there is no such key, did you mean {' or '.join(f'{name}.{key}' for name in inner)}?"
    return f"{key}: there is no such key{nearest(location[-1], list(model.model_fields), prefix)}"


def _has(annotation: Any, key: str) -> bool:
    section = _section(annotation)
    return section is not None and key in section.model_fields


def _wanted(error: ErrorDetails) -> str:
    if error["type"] in ("model_type", "dict_type"):
        return "a section"
    return error["msg"].removeprefix("Input should be ").removeprefix("a valid ")
