"""The registry of methods."""

from typing import Any

import pytest

from deepshare import methods
from deepshare.errors import RecipeError
from deepshare.methods.base import Method


@pytest.mark.parametrize("name", methods.names())
def test_every_method_is_found_by_its_name(name: str) -> None:
    kind: Any = methods.get(name)
    assert issubclass(kind, Method)


def test_an_unknown_method_is_told_the_names() -> None:
    with pytest.raises(RecipeError, match='no method is called "sln": give one of autorep, deepreduce'):
        methods.get("sln")
