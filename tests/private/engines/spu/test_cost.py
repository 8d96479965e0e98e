"""Predicted costs of the SPU engines: formulas and counts."""

import pytest
import torch

from deepshare import plan, share, zoo
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import find_engine
from deepshare.private.runtime.outcome import Part
from tests.private.engines.spu.programs import resnet, varied

NAMES = ["spu-cheetah", "spu-semi2k"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["shared", "relu", "masks", "channels", "neurons"])
def test_comparisons_are_those_of_the_program(name: str, kind: str) -> None:
    for program in (varied(kind), resnet(kind)):
        layers, offline = find_engine(name).predict(program, 3, {})
        assert sum(part.comparisons for part in layers.values()) == 3 * program.comparisons
        assert offline == Part()
        for number, operation in enumerate(program.operations):
            assert layers.get(number, Part()).comparisons == 3 * operation.comparisons


@pytest.mark.parametrize("name", NAMES)
def test_an_outline_costs_as_much(name: str) -> None:
    program, engine = varied("channels"), find_engine(name)
    assert engine.predict(program.outline(), 1, {}) == engine.predict(program, 1, {})


def test_sharing_saves_bytes_at_activations_on_both_protocols() -> None:
    for name, ratio in (("spu-cheetah", 4.5), ("spu-semi2k", 3.0)):
        sent = []
        for kind in ("shared", "relu"):
            program = resnet(kind)
            layers, _ = find_engine(name).predict(program, 1, {})
            activations = [p for n, p in layers.items() if program.operations[n].kind.endswith("Activation")]
            sent.append(sum(part.server_bytes + part.client_bytes for part in activations))
        assert sent[1] > ratio * sent[0]


def test_scales_are_absorbed_where_that_sends_less(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = zoo.resnet18().eval()
    program = translate(share(model, plan(model, (3, 32, 32), 6_000)), (3, 32, 32))

    def sent() -> int:
        layers, _ = find_engine("spu-cheetah").predict(program, 1, {})
        return sum(part.server_bytes + part.client_bytes for part in layers.values())

    chosen = sent()
    for always in (True, False):
        monkeypatch.setattr("deepshare.private.engines.spu.lowering.absorbing_pays", lambda *_, always=always: always)
        assert chosen < 0.95 * sent()
