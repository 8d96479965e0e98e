from dataclasses import replace

import pytest
import torch
from torch import nn

from deepshare.errors import EngineError, UnsupportedModelError
from deepshare.private.engines.crypten.fixed import LIMIT
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import check_images_below, find_engine

ENGINE = find_engine("crypten")


def small() -> Program:
    torch.manual_seed(0)
    return translate(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)), (1, 4, 4))


@pytest.mark.parametrize(
    ("options", "words"),
    [({"provider": "he"}, "no provider he: take one of tfp, ttp"), ({"bits": "3"}, "no option bits")],
)
def test_options_that_are_not_there(options: dict[str, str], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        ENGINE.check(small(), options)
    with pytest.raises(EngineError, match=words):
        ENGINE.roles(options)
    with pytest.raises(EngineError, match=words):
        ENGINE.predict(small(), 1, options)


def test_who_takes_part() -> None:
    assert ENGINE.roles({}) == ENGINE.roles({"provider": "tfp"}) == ("server", "client")
    assert ENGINE.roles({"provider": "ttp"}) == ("server", "client", "dealer")


@pytest.mark.parametrize("number", [32_768.0, -1e9, float("nan"), float("inf")])
def test_every_layer_with_a_number_out_of_range_is_named(number: float) -> None:
    program = small()
    first, last = program.operations[1], program.operations[-1]
    wrong = {name: getattr(op, name).clone() for op, name in ((first, "weight"), (last, "bias"))}
    for tensor in wrong.values():
        tensor.view(-1)[1] = number
    changed = Program(
        (
            program.operations[0],
            replace(first, weight=wrong["weight"]),  # type: ignore[call-arg]
            *program.operations[2:-1],
            replace(last, bias=wrong["bias"]),  # type: ignore[call-arg]
        )
    )
    with pytest.raises(UnsupportedModelError) as caught:
        ENGINE.check(changed, {})
    assert [problem.split(",")[0] for problem in caught.value.problems] == [
        "0: its weight has a number that is not below 8192",
        "3: its bias has a number that is not below 8192",
    ]
    ENGINE.check(changed.outline(), {})


def test_numbers_in_range_and_images_are_let_through() -> None:
    ENGINE.check(small(), {})
    check_images_below(torch.full((1, 1, 4, 4), 8_191.0), LIMIT)
    with pytest.raises(EngineError, match="normalise"):
        check_images_below(torch.full((1, 1, 4, 4), float("nan")), LIMIT)
