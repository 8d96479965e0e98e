"""Every lot has randomness of its own, and is used once."""

import numpy as np
import pytest
import torch

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.crypto import dcf
from deepshare.private.engines.gateshare.crypto.dcf import Bytes, Keys, Words
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.lot import ID_BYTES, Lot
from deepshare.private.engines.gateshare.preprocessing.dealer import LotDealer, LotStock
from deepshare.private.engines.gateshare.protocols.gate import GateStep
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from tests.private.engines.gateshare.trial import SIZE, shared_resnet


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(61)
    return translate(shared_resnet(), SIZE)


def test_every_lot_and_leader_has_its_own_aes_key_and_roots(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, deal = schedule(program.outline(), calibrate(program)), dcf.deal
    keys, roots = list[bytes](), list[Words]()

    def kept(thresholds: Words, bits: int, both: tuple[Words, Words], aes_key: bytes, into: Bytes) -> Keys:
        keys.append(aes_key)
        roots.extend(both)
        return deal(thresholds, bits, both, aes_key, into)

    monkeypatch.setattr(dcf, "deal", kept)
    dealer = LotDealer(steps)
    for _ in range(3):
        dealer.deal(1)
    leaders = sum(isinstance(step, GateStep) and step.leads for step in steps.steps)
    assert leaders > 1 and len(set(keys)) == len(keys) == 3 * leaders
    rows = np.concatenate(roots)
    assert len(np.unique(rows, axis=0)) == len(rows) == 3 * 2 * program.comparisons


def test_lots_are_used_once() -> None:
    stock, lot = LotStock(), Lot(bytes(ID_BYTES), bytes(32), 1)
    stock.add(lot)
    with pytest.raises(EngineError, match="was dealt before"):
        stock.add(lot)
    assert stock.take(lot.id) is lot
    with pytest.raises(EngineError, match=r"lot 0+ is spent"):
        stock.take(lot.id)
    with pytest.raises(EngineError, match="was dealt before"):
        stock.add(lot)
    with pytest.raises(EngineError, match="there is no lot ff"):
        stock.take(b"\xff" * ID_BYTES)
