"""Engines by name."""

import subprocess
import sys

import pytest

from deepshare.errors import EngineError
from deepshare.private.runtime.engine import check_installed, engine_with_preprocessing, find_engine


def test_an_engine_that_is_not_installed_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r"needs crypten, .*pip install --no-deps crypten==0\.4\.1"):
        check_installed(find_engine("crypten"))


def test_one_engine_has_preprocessing() -> None:
    engine, preprocessing = engine_with_preprocessing()
    assert engine.name == "gateshare"
    assert preprocessing is engine.preprocessing


def test_the_names_of_engines_are_known_without_torch() -> None:
    script = "import sys; from deepshare.cli.options import ENGINES; print(ENGINES, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "crypten, gateshare, gateshare-2pc, spu-cheetah or spu-semi2k False\n"
