"""Both parties as real processes."""

import pytest
import torch

pytest.importorskip("spu", reason="engine spu is not installed")

from deepshare.private.api import run
from deepshare.private.cost import Result
from deepshare.private.ir.program import Convolution, Linear, Program
from deepshare.private.runtime.engine import find_engine
from deepshare.private.runtime.outcome import Part
from tests.private.engines.spu.programs import resnet, varied


def check(program: Program, engine: str, count: int) -> Result:
    """Logits, gates and predicted cost."""
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(count, *program.input_size, generator=generator)
    result = run(program, images, engine)
    cost = result.cost
    # Random weights with few gates make logits of some hundreds.
    assert cost.error is not None and cost.error <= 1e-3 * float(result.logits.abs().max().clamp(min=10))
    assert cost.online.comparisons == count * program.comparisons
    predicted, _ = find_engine(engine).predict(program, count, {})
    assert [layer.name for layer in cost.layers] == [program.operations[number].name for number in sorted(predicted)]
    total = sum(predicted.values(), Part())
    assert (total.comparisons, total.products) == (cost.online.comparisons, cost.online.products)
    assert total.server_bytes == pytest.approx(cost.online.server_bytes, rel=0.02)
    assert total.client_bytes == pytest.approx(cost.online.client_bytes, rel=0.02)
    assert total.rounds == cost.online.rounds
    return result


def test_semi2k_runs_a_shared_resnet() -> None:
    program = resnet("shared")
    cost = check(program, "spu-semi2k", 2).cost
    predicted, _ = find_engine("spu-semi2k").predict(program, 2, {})
    for layer, part in zip(cost.layers, (predicted[number] for number in sorted(predicted)), strict=True):
        assert (layer.part.client_bytes, layer.part.rounds) == (part.client_bytes, part.rounds), layer.name
    weights = sum(op.weight.numel() for op in program.operations if isinstance(op, Convolution | Linear))
    assert 8 * weights < cost.session.server_bytes < 12 * weights


def test_semi2k_runs_every_operation_with_masks_and_polynomials() -> None:
    check(varied("channels"), "spu-semi2k", 2)


def test_cheetah_runs_every_operation_with_shared_gates() -> None:
    result = check(varied("shared"), "spu-cheetah", 1)
    assert result.logits.shape == (1, 5) and result.cost.session.server_bytes > 10_000_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["relu", "masks", "channels", "neurons"])
@pytest.mark.parametrize("engine", ["spu-cheetah", "spu-semi2k"])
def test_every_operation(kind: str, engine: str) -> None:
    check(varied(kind), engine, 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shared", "relu", "masks", "channels"])
@pytest.mark.parametrize("engine", ["spu-cheetah", "spu-semi2k"])
def test_resnets(kind: str, engine: str) -> None:
    check(resnet(kind), engine, 1)
