"""Truncation: screened, and right up to one unit within the window."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.lot import Lot
from deepshare.private.engines.gateshare.protocols.linear import LinearStep
from deepshare.private.engines.gateshare.protocols.step import InTheClear
from deepshare.private.engines.gateshare.protocols.truncation import TruncationStep
from deepshare.private.ir.trace import translate
from tests.private.engines.gateshare.sessions import fix_randomness
from tests.private.engines.gateshare.trial import (
    SIZE,
    Trial,
    shared_resnet,
)


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
