"""The server refuses lots that are not sound, and weights that change."""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.server import taken_lots
from deepshare.private.ir.program import Convolution
from deepshare.private.ir.trace import translate
from tests.private.engines.gateshare.damaged_messages import changed
from tests.private.engines.gateshare.trial import (
    SIZE,
    Trial,
    shared_resnet,
)

SLOW = [HealthCheck.too_slow]  # so may a busy machine be
TAKE = {"take": [["00" * 16, [0, 2]], ["ff" * 16, [1]]]}


@settings(max_examples=500, deadline=None, suppress_health_check=SLOW)
@given(changed(TAKE))
def test_lots_that_are_taken_are_sound_or_refused(message: dict[str, Any]) -> None:
    try:
        names = taken_lots(message, 3)
    except EngineError:
        assert message != TAKE
        return
    assert sum(map(len, names.values())) == 3 and all(len(name) == 16 for name in names)
    assert all(rows[0] >= 0 and rows == sorted(set(rows)) for rows in names.values())


def test_weights_that_change_within_a_session_are_refused() -> None:
    torch.manual_seed(12)
    trial = Trial(translate(shared_resnet(), SIZE))
    trial.run(torch.randn(1, *SIZE))
    weight = next(op.weight for op in trial.program.operations if isinstance(op, Convolution))
    weight[0, 0, 0, 0] += 1e-9
    lot, mine = trial.dealer.deal(1)
    with pytest.raises(EngineError, match="weights have changed since their masks were made"):
        trial.server.preprocess([(lot, [0])], trial.client.preprocess(mine, fresh_seed()).openings)
