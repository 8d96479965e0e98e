"""Every step of a private inference, put together from both shares, is that of the evaluation in the clear."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from deepshare import zoo
from deepshare.private.engines.gateshare import reference as fixed
from deepshare.private.engines.gateshare.client import ClientMaterial
from deepshare.private.engines.gateshare.crypto.limb_matmul import Geometry
from deepshare.private.engines.gateshare.crypto.prg import fresh_seed
from deepshare.private.engines.gateshare.crypto.ring import decode
from deepshare.private.engines.gateshare.fixedpoint import LEAST_BITS, NumberFormat
from deepshare.private.engines.gateshare.lot import Lot
from deepshare.private.engines.gateshare.protocols.gate import GateStep
from deepshare.private.engines.gateshare.protocols.input_output import InputStep
from deepshare.private.engines.gateshare.protocols.linear import LinearStep
from deepshare.private.engines.gateshare.protocols.local import (
    ConcatStep,
    ResampleStep,
    ReshapeStep,
    ScatterStep,
    SelectStep,
    SumStep,
)
from deepshare.private.engines.gateshare.protocols.square import OpeningStep, SquareStep
from deepshare.private.engines.gateshare.protocols.step import InTheClear
from deepshare.private.engines.gateshare.protocols.truncation import TruncationStep
from deepshare.private.ir.program import GatedActivation, Program, SharedActivation
from deepshare.private.ir.trace import translate
from tests.private.engines.gateshare.sessions import fix_randomness
from tests.private.engines.gateshare.trial import (
    SIZE,
    Apart,
    Odd,
    Quadratic,
    Trial,
    curved_resnet,
    shared_resnet,
    shuffled_norms,
)


def networks() -> dict[str, nn.Module]:
    return {
        "shared": shared_resnet(),
        "plain": shuffled_norms(zoo.resnet18(width=4, num_classes=10)),
        "odd": Odd().eval(),
        "curved": curved_resnet(),
        "quadratic": Quadratic().eval(),
        "apart": Apart().eval(),
    }


@pytest.fixture(scope="module", params=["shared", "plain", "odd", "curved", "quadratic", "apart", "coarse"])
def trial(request: pytest.FixtureRequest) -> Trial:
    torch.manual_seed(1)
    if request.param == "coarse":
        program = translate(networks()["curved"], SIZE)
        return Trial(program, NumberFormat((LEAST_BITS,) * len(program.operations), 8.0))
    return Trial(translate(networks()[request.param], SIZE))


def test_every_tensor_is_exact_and_the_logits_are_those_of_the_network(trial: Trial) -> None:
    images = torch.randn(3, *SIZE)
    run = trial.run(images)
    expected: dict[int, torch.Tensor] = {}
    logits = fixed.evaluate(trial.schedule, images, run.shares, expected.__setitem__)
    assert set(expected) == set(range(len(trial.schedule.steps))) == set(run.values)
    for number, value in expected.items():
        assert torch.equal(run.values[number], value), f"{number} {trial.schedule.steps[number]}"
    assert torch.equal(run.logits, logits + run.noise)
    scale = trial.schedule.steps[trial.schedule.output].scale
    finer = trial.number_format.finer
    assert 2.0 ** (-9 - finer) < float(decode(run.noise, scale).abs().max()) <= 2.0 ** (-6 - finer)
    expected_logits = trial.program.evaluate(images)
    # Weights have 14 bits after the point, alpha and beta 12, or two more: the rest is their rounding.
    bound = 2.0 ** (-9 - finer) * float(expected_logits.abs().max())
    assert float((decode(logits, scale) - expected_logits).abs().max()) < bound


@pytest.mark.parametrize("who", ["dealer", "server", "client"])
def test_parties_multiply_in_either_way_together(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """One party has AVX-512, and the others have not."""
    torch.manual_seed(1)
    program = translate(shared_resnet(), SIZE)
    asked: list[str] = []

    def whole_is_faster(geometry: Geometry | None = None) -> bool:
        files = {Path(frame.filename).stem for frame in inspect.stack(0)}
        asked.extend(files & {"dealer", "server", "client"})
        return who in files

    monkeypatch.setattr("deepshare.private.engines.gateshare.crypto.limb_matmul.whole_is_faster", whole_is_faster)
    trial, images = Trial(program), torch.randn(2, *SIZE)
    assert {"dealer", "server", "client"} <= set(asked)
    run = trial.run(images)
    monkeypatch.setattr(
        "deepshare.private.engines.gateshare.crypto.limb_matmul.whole_is_faster", lambda geometry=None: False
    )
    assert torch.equal(run.logits, fixed.evaluate(trial.schedule, images, run.shares) + run.noise)


def test_hardly_any_share_is_where_it_cannot_be_truncated(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_randomness(monkeypatch, "screened")
    assert trial.schedule.unsafe_shares < 2**-6
    _, lot = trial.dealer.deal(4)
    assert not trial.client.preprocess(lot, fresh_seed()).unsafe.any()


def test_without_the_shares_every_truncation_is_within_a_unit(trial: Trial) -> None:
    images = torch.randn(2, *SIZE)
    run = trial.run(images)
    for number, step in enumerate(trial.schedule.steps):
        if isinstance(step, TruncationStep):
            difference = run.values[number] - (run.values[step.inputs[0]] >> step.by)
            assert set(difference.unique().tolist()) <= {0, 1}


def test_the_networks_have_steps_of_every_kind() -> None:
    torch.manual_seed(1)
    kinds: set[object] = set()
    for network in networks().values():
        for step in Trial(translate(network, SIZE)).schedule.steps:
            kinds.add(type(step))
            if isinstance(step, GateStep):
                kinds |= {(step.leads, step.affine is not None), step.where is None}
            if isinstance(step, LinearStep):
                kinds.add(len(step.terms))
    assert kinds >= {InputStep, LinearStep, TruncationStep, SumStep, ConcatStep, ReshapeStep, ResampleStep, GateStep}
    assert kinds >= {OpeningStep, SquareStep, ScatterStep, SelectStep}
    assert kinds >= {(True, True), (False, True), (True, False), True, False, 2}


def test_own_gates_with_alpha_1_and_beta_0_are_relu() -> None:
    torch.manual_seed(2)
    program = translate(nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 5)), SIZE)
    (number,) = (i for i, operation in enumerate(program.operations) if isinstance(operation, GatedActivation))
    relu, ones = program.operations[number], torch.ones(6, dtype=torch.float64)
    identity = SharedActivation(
        relu.name, relu.inputs, relu.shape, number, 6, torch.arange(6), ones, torch.zeros_like(ones)
    )
    operations = list(program.operations)
    operations[number] = identity
    images = torch.randn(4, *SIZE)
    trials = Trial(program), Trial(Program(tuple(operations)))
    runs = [trial.run(images) for trial in trials]
    for trial, run in zip(trials, runs, strict=True):
        steps = list(enumerate(trial.schedule.steps))
        gate = next(i for i, step in steps if isinstance(step, GateStep))
        x = run.values[trial.schedule.steps[gate].inputs[0]]
        assert torch.equal(run.values[gate], x.relu() << (trial.schedule.steps[gate].scale - 18))
        expected_logits = program.evaluate(images)
        values = decode(run.logits - run.noise, trial.schedule.steps[trial.schedule.output].scale)
        assert float((values - expected_logits).abs().max()) < 2.0**-9


@pytest.mark.parametrize("network", [shared_resnet, curved_resnet])
def test_a_batch_of_several_lots_with_images_left_out(network: Callable[[], nn.Module]) -> None:
    torch.manual_seed(3)
    trial = Trial(translate(network(), SIZE))
    dealt = [trial.dealer.deal(3), trial.dealer.deal(1), trial.dealer.deal(2)]
    rows = [[0, 2], [0], [1]]
    material, mine = [], []
    for (_, lot), chosen in zip(dealt, rows, strict=True):
        material.append(trial.client.preprocess(lot, fresh_seed()).select(chosen))
        mine.append({number: value[chosen] for number, value in trial.public.seen.items()})
    shares = {number: torch.cat([part[number] for part in mine]) for number in mine[0]}
    images = torch.randn(4, *SIZE)
    lots = [(lot, chosen) for (lot, _), chosen in zip(dealt, rows, strict=True)]
    run = trial.online(images, lots, ClientMaterial.concat(material), shares)
    assert torch.equal(run.logits - run.noise, fixed.evaluate(trial.schedule, images, run.shares))


@dataclass(frozen=True, eq=False)
class Moved(Lot):
    """A lot whose share of one product is moved."""

    number: int = 0
    by: Tensor = field(default_factory=lambda: torch.zeros(()))

    def mask(self, name: str, number: int, shape: Sequence[int]) -> Tensor:
        found = Lot.mask(self, name, number, shape)
        return found + self.by if (name, number) == ("product", self.number) else found


def test_shares_near_the_end_of_the_ring_are_screened_image_by_image(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    fix_randomness(monkeypatch, "screened")  # with which no other share is near
    trial = Trial(translate(shared_resnet(), SIZE))
    _, dealt = trial.dealer.deal(3)
    seed = fresh_seed()
    number = next(n for n, step in enumerate(trial.schedule.steps) if isinstance(step, LinearStep))
    step = trial.schedule.steps[number + 1]
    assert isinstance(step, TruncationStep) and step.inputs == (number,) and step.window == 1 << 40
    trial.client.preprocess(dealt, seed)
    share, moved = trial.public.seen[number], torch.zeros(3, *trial.schedule.steps[number].shape, dtype=torch.int64)
    lot = Moved(dealt.id, dealt.seed, 3, dealt.pieces, number, moved)
    for value, safe in ((step.window, True), (step.window - 1, False), (-step.window, False), (-step.window - 1, True)):
        moved[1, 0, 0, 0] += value - share[1, 0, 0, 0]
        made = trial.client.preprocess(lot, seed)
        share = trial.public.seen[number]
        assert made.usable == ([0, 1, 2] if safe else [0, 2]), value
    assert len(trial.client.preprocess(lot, seed).select([0, 2]).logits) == 2


def test_numbers_at_the_edge_of_the_window_are_truncated_right_and_beyond_it_wrong() -> None:
    """What screening is for: a share just outside the window carries any number up to its size, and none larger."""
    window, by = 1 << 36, 14
    step = TruncationStep(number=1, operation=0, inputs=(0,), shape=(), scale=16, by=by, window=window)
    for share, number, right in (
        (window, window, True),
        (window, window + (1 << by), False),
        (-window - 1, -window, True),
        (-window - 1, -window - 1 - (1 << by), False),
    ):
        at = InTheClear(images=torch.empty(0), shares={1: torch.tensor([share])})
        result = step.in_the_clear([torch.tensor([number])], at)
        assert (abs(int(result) - (number >> by)) <= 1) == right, (share, number)


@pytest.mark.parametrize("value", [0, -1, 1, (1 << 33) - 1, -(1 << 33)])
def test_gates_at_zero_and_at_the_ends_of_their_range(value: int) -> None:
    """The first neuron of a leader holds exactly this number."""
    torch.manual_seed(5)
    trial = Trial(translate(nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)), (3, 2, 2)))
    trial.number_format = replace(trial.number_format, limit=1e9)
    run = trial.run(torch.full((2, 3, 2, 2), value / 2**18, dtype=torch.float64))
    gate = next(n for n, step in enumerate(trial.schedule.steps) if isinstance(step, GateStep))
    assert set(run.values[gate].unique().tolist()) == {max(value, 0)}
