"""Gates over patches: cells by hand, and both engines on networks whose patches do not fit their maps."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn

from deepshare import count_gates, plan, share, zoo
from deepshare.errors import EngineError, PlanMismatchError, UnsupportedModelError
from deepshare.methods.patches import PatchReLU, patched
from deepshare.private import infer
from deepshare.private.api import check_plan
from deepshare.private.cost import predict
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.fixedpoint import LEAST_BITS, NumberFormat
from deepshare.private.engines.gateshare.protocols.gate import GateStep
from deepshare.private.ir import outline
from deepshare.private.ir.patches import cells_of_patches, sums
from deepshare.private.ir.program import GatedActivation, Input, Program
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import find_engine
from deepshare.sharing.convert import replace_sites
from deepshare.sharing.sites import Site, find_sites
from tests.private.engines.gateshare.trial import Trial

SIZE = (3, 9, 9)


def shared() -> nn.Module:
    model = zoo.resnet18(width=4, num_classes=5)
    return share(model, plan(model, SIZE, "5%", patch=2), start="uniform").eval()


def spatial() -> nn.Module:
    """Channels with patches of one neuron, of uneven ones, of the whole map, and without a gate."""
    base = zoo.resnet18(width=4, num_classes=5)
    model = replace_sites(base, find_sites(base, SIZE), PatchReLU).eval()
    for site in patched(model):
        kinds = torch.tensor([[1, 1], [2, 1], [site.site.height, site.site.width], [0, 0]])
        site.set_patches(kinds[torch.arange(site.site.channels) % 4])
    return model


@pytest.fixture(params=[shared, spatial])
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(3)
    made: nn.Module = request.param()
    return made


def test_cells_by_hand() -> None:
    cells = cells_of_patches(torch.tensor([[2, 2], [3, 1]]), 3, 3)
    assert cells.view(2, 3, 3).tolist() == [
        [[0, 0, 1], [0, 0, 1], [2, 2, 3]],
        [[4, 5, 6], [4, 5, 6], [4, 5, 6]],
    ]
    numbers = torch.arange(18).view(1, 2, 3, 3)
    assert sums(numbers, cells).tolist() == [[0 + 1 + 3 + 4, 2 + 5, 6 + 7, 8, 36, 39, 42]]


def test_the_program_is_the_network_and_counts_its_gates(model: nn.Module) -> None:
    program, images = translate(model, SIZE), torch.randn(3, *SIZE)
    torch.testing.assert_close(program.evaluate(images).float(), model(images), rtol=1e-4, atol=1e-4)
    assert program.comparisons == count_gates(model, SIZE)
    again = outline.parse(outline.dump(program))
    assert again.comparisons == program.comparisons and outline.digest(again) == outline.digest(program)


@pytest.mark.usefixtures("parties_are_threads")
@pytest.mark.parametrize("engine", ["crypten", "gateshare"])
def test_privately(model: nn.Module, engine: str) -> None:
    if engine == "crypten" and find_spec("crypten") is None:
        pytest.skip("engine crypten is not installed")
    images = torch.randn(2, *SIZE)
    result = infer(model, images, engine=engine)
    expected: Tensor = model(images).detach()
    assert float((result.logits - expected).abs().max()) < 0.05
    predicted = predict(model, SIZE, engine, images=2)
    for measured, planned in ((result.cost.online, predicted.online), (result.cost.offline, predicted.offline)):
        assert (measured.server_bytes, measured.client_bytes) == (planned.server_bytes, planned.client_bytes)
        assert (measured.rounds, measured.comparisons) == (planned.rounds, planned.comparisons)
    assert result.cost.online.comparisons == 2 * count_gates(model, SIZE)


def test_numbers_that_are_compared_have_room_for_the_sum_of_their_cell() -> None:
    torch.manual_seed(3)
    program = translate(spatial(), SIZE)
    steps = schedule(program, NumberFormat.usual(program)).steps
    first = next(step for step in steps if isinstance(step, GateStep))
    assert first.bits == LEAST_BITS + 2 + 7  # the whole map of 9x9 is 81 numbers
    assert first.gates == (program.operations[first.operation].comparisons,)


def test_gates_of_sums_at_zero_and_at_the_ends_of_their_range() -> None:
    """Two cells of four neurons, each with numbers as large as any, whose sum is exactly this."""
    site = Site("act", 2, 2, 2, "module")
    model = nn.Sequential(PatchReLU(site), nn.Flatten(), nn.Linear(8, 2)).eval()
    next(iter(patched(model))).set_patches(torch.tensor([[2, 2], [2, 2]]))
    largest = 2.0**14
    first = torch.tensor([largest, -largest, 2.0**-18, -(2.0**-18)])
    images = torch.stack([first, torch.full((4,), -largest)]).view(1, 2, 2, 2).double()
    trial = Trial(translate(model, (2, 2, 2)))
    trial.number_format = replace(trial.number_format, limit=1e9)
    run = trial.run(images)
    gate = next(n for n, step in enumerate(trial.schedule.steps) if isinstance(step, GateStep))
    expected = torch.stack([first, torch.zeros(4)]).view(1, 2, 2, 2).double() * 2**18
    assert run.values[gate].double().equal(expected)


def test_a_site_without_any_gate_passes() -> None:
    site = Site("act", 3, 4, 4, "module")
    model = nn.Sequential(nn.Conv2d(3, 3, 1), PatchReLU(site), nn.Flatten(), nn.Linear(48, 2)).eval()
    next(iter(patched(model))).set_patches(torch.zeros(3, 2, dtype=torch.long))
    program, images = translate(model, (3, 4, 4)), torch.randn(2, 3, 4, 4)
    assert program.comparisons == 0
    torch.testing.assert_close(program.evaluate(images).float(), model(images).detach())
    steps = schedule(program, NumberFormat.usual(program))
    assert not any(isinstance(step, GateStep) for step in steps.steps)
    told = outline.parse(outline.dump(program)).operations[2]
    assert isinstance(told, GatedActivation) and told.cells is not None and told.cells.shape == (0,)


def test_a_plan_without_patches_is_another_plan() -> None:
    model = zoo.resnet18(width=4, num_classes=5)
    with_patches, without = plan(model, SIZE, "5%", patch=2), plan(model, SIZE, "5%")
    program = translate(share(model, with_patches).eval(), SIZE)
    check_plan(program, with_patches)
    with pytest.raises(PlanMismatchError, match="otherwise than the plan"):
        check_plan(program, without)


@pytest.mark.parametrize("wrong", [[0, 0, 5], [0, 2], [0, 0, 2], [-1, 0, 0]])
def test_cells_from_another_party_are_checked(wrong: list[int]) -> None:
    first = Input("input", (), (3,))
    mask = torch.ones(3, dtype=torch.bool)
    outline.parse(
        outline.dump(Program((first, GatedActivation("act", (0,), (3,), mask, cells=torch.tensor([0, 1, 0])))))
    )
    damaged = Program((first, GatedActivation("act", (0,), (3,), mask, cells=torch.tensor(wrong))))
    with pytest.raises(EngineError, match="damaged outline"):
        outline.parse(outline.dump(damaged))


def test_spu_says_that_it_cannot(model: nn.Module) -> None:
    with pytest.raises(UnsupportedModelError, match="spu-semi2k has no gates over patches: take engine gateshare"):
        find_engine("spu-semi2k").check(translate(model, SIZE), {})
