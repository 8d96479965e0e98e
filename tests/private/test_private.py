"""The front of the package: public names, loaded on first use."""

import subprocess
import sys

import pytest

from deepshare import private


@pytest.mark.parametrize("name", private.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(private, name).__name__ == name
    assert name in dir(private)


def test_predict_is_there_without_another_import() -> None:
    script = "import deepshare; print(deepshare.private.cost.predict.__name__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "predict\n"


def test_a_party_does_not_import_methods_or_recipes() -> None:
    script = "import sys, deepshare.private.runtime.party; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert {name for name in done.stdout.split() if name.startswith(("deepshare.methods", "pydantic"))} == set()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        private.nonsense  # noqa: B018
