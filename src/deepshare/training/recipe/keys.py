"""Keys of a recipe: their types, flags read as those types, and problems in plain words."""

import json
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from deepshare.errors import RecipeError
from deepshare.text import nearest
from deepshare.training.recipe.schema import RENAMED, Recipe


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
