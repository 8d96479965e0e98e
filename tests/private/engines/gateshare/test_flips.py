"""benchmarks/flips.py: the network in the clear with rounded numbers, as the engine has them."""

import pytest
import torch

from benchmarks.flips import UNKNOWN, Bits, by_format, by_gate, evaluate
from deepshare.private.engines.gateshare import reference
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from tests.private.engines.gateshare.trial import SIZE, shared_resnet


@pytest.fixture(scope="module")
def program() -> Program:
    return translate(shared_resnet(), SIZE)


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(3, *SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.double)


def test_without_rounding_it_is_the_network(program: Program, images: torch.Tensor) -> None:
    logits, gates = evaluate(program, images)
    assert torch.equal(logits, program.evaluate(images))
    assert sum(found.numel() for found in gates.values()) == len(images) * program.comparisons


def test_with_all_rounded_it_is_as_far_from_the_network_as_the_engine_is(
    program: Program, images: torch.Tensor
) -> None:
    number_format = calibrate(program)
    steps = schedule(program, number_format)
    engine = reference.evaluate(steps, images).double() / 2.0 ** steps.steps[steps.output].scale
    bits = Bits(number_format.fraction, number_format.weight, number_format.affine)
    exact = program.evaluate(images)
    ours, theirs = ((found - exact).abs().max() for found in (evaluate(program, images, bits)[0], engine))
    assert 0 < ours < 4 * theirs
    assert 0 < theirs < 4 * ours


def test_one_gate_is_flipped_in_the_group_where_it_is_wanted(program: Program, images: torch.Tensor) -> None:
    labels = torch.tensor([0, 1, UNKNOWN])
    rows = by_gate(program, images, labels)
    assert len(rows) > 1
    for group, row in enumerate(rows):
        assert row.by_group[:group] == [0] * group
        assert row.by_group[group] == len(images)


def test_finer_numbers_cost_four_times_the_unsafe_shares_a_bit(program: Program, images: torch.Tensor) -> None:
    rows = {row.name: row for row in by_format(program, images, torch.tensor([0, 1, UNKNOWN]))}
    exact, engine, finest = (
        rows[name] for name in ("nothing", "everything, as gateshare does", "everything, 6 bits finer")
    )
    assert (exact.same, sum(exact.by_group), exact.unsafe) == (1.0, 0, None)
    assert engine.unsafe is not None and finest.unsafe == engine.unsafe * 4**6
