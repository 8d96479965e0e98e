from dataclasses import replace

import pytest
import torch

from deepshare.errors import EngineError, UnsupportedModelError
from deepshare.private.engines.spu.protocol import LIMIT
from deepshare.private.ir.program import Convolution, Program
from deepshare.private.runtime.engine import check_images_below, find_engine
from tests.private.engines.spu.programs import varied

NAMES = ["spu-cheetah", "spu-semi2k"]


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_can_be_done(name: str) -> None:
    find_engine(name).check(varied("channels"), {})
    find_engine(name).check(varied("channels").outline(), {})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [LIMIT, float("nan")])
def test_a_number_beyond_the_range_is_refused_with_its_layer(name: str, value: float) -> None:
    operations = list(varied("relu").operations)
    number = next(n for n, operation in enumerate(operations) if operation.name == "wide")
    convolution = operations[number]
    assert isinstance(convolution, Convolution)
    operations[number] = replace(convolution, bias=torch.full_like(convolution.bias, value))
    with pytest.raises(UnsupportedModelError, match=r"^wide: its bias has a number that is not below 8192"):
        find_engine(name).check(Program(tuple(operations)), {})


@pytest.mark.parametrize("name", NAMES)
def test_options_are_refused(name: str) -> None:
    with pytest.raises(EngineError, match=f"engine {name} has no option provider"):
        find_engine(name).check(varied("relu"), {"provider": "ttp"})


def test_images_beyond_the_range_are_refused() -> None:
    check_images_below(torch.full((1, 1, 2, 2), -LIMIT + 1), LIMIT)
    with pytest.raises(EngineError, match="below 8192"):
        check_images_below(torch.full((1, 1, 2, 2), LIMIT), LIMIT)


@pytest.mark.parametrize("name", NAMES)
def test_it_needs_two_parties_and_speaks_tls(name: str) -> None:
    engine = find_engine(name)
    assert engine.roles({}) == ("server", "client") and engine.encrypts
    assert "deepshare[spu]" in engine.install and "spu" in engine.packages
