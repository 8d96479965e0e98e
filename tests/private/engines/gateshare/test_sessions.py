"""Whole sessions: all that is random comes from the operating system, and is drawn anew each time."""

import random
from itertools import combinations

import numpy as np
import pytest
import torch

from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.crypto import dcf
from deepshare.private.engines.gateshare.crypto.dcf import Keys, Words
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.preprocessing.dealer import LotDealer
from deepshare.private.engines.gateshare.protocols.gate import GateStep
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from tests.private.engines.gateshare.sessions import Seen, fix_randomness, session
from tests.private.engines.gateshare.trial import SIZE, shared_resnet

# Frames that have at least as many bytes differ in nearly all of them.
LONG = 256


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(61)
    return translate(shared_resnet(), SIZE)


def seeded(patch: pytest.MonkeyPatch, program: Program, stream: str, seed: int) -> Seen:
    """A session that asks one image twice, with all generators but the operating system's seeded."""
    torch.manual_seed(62)
    images = torch.randn(1, *SIZE).repeat(2, 1, 1, 1)
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what nobody may draw from
    random.seed(seed)
    fix_randomness(patch, stream)
    seen = session(patch, program, images)
    assert seen.logits is not None
    assert float((seen.logits - program.evaluate(images)).abs().max()) < 2.0**-3
    return seen


def test_no_other_generator_is_in_play(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (seeded(monkeypatch, program, "one", seed) for seed in (1, 2))
    assert set(first.frames) == {
        (a, b) for a in ("server", "client", "dealer") for b in ("server", "client", "dealer") if a != b
    }
    for ends, frames in first.frames.items():
        assert frames == second.frames[ends], ends
    assert all(map(torch.equal, first.noise, second.noise))


def test_frames_and_noise_never_repeat_although_the_image_does(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [seeded(monkeypatch, program, stream, 1) for stream in ("one", "two")]
    assert [kind for kind, _ in runs[0].payloads] == [kind for kind, _ in runs[1].payloads]
    alike: dict[tuple[str, str, int, int], list[bytes]] = {}
    for kind, data in (one for run in runs for one in run.payloads):
        alike.setdefault(kind, []).append(data)
    # Weights go over once a session, everything else with each image.
    assert {len(found) for found in alike.values()} >= {2, 4}
    for kind, found in alike.items():
        for one, other in combinations(found, 2):
            assert one != other, kind
            if len(one) >= LONG:
                assert np.mean(np.frombuffer(one, np.uint8) == np.frombuffer(other, np.uint8)) < 0.05, kind
    noise = torch.cat([part for run in runs for part in run.noise])
    assert noise.shape[0] == 4 and len(noise.unique()) == noise.numel()


def test_every_lot_and_leader_has_its_own_aes_key_and_roots(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, deal = schedule(program.outline(), calibrate(program)), dcf.deal
    keys, roots = list[bytes](), list[Words]()

    def kept(thresholds: Words, bits: int, both: tuple[Words, Words], aes_key: bytes) -> Keys:
        keys.append(aes_key)
        roots.extend(both)
        return deal(thresholds, bits, both, aes_key)

    monkeypatch.setattr(dcf, "deal", kept)
    dealer = LotDealer(steps)
    for _ in range(3):
        dealer.deal(1)
    leaders = sum(isinstance(step, GateStep) and step.leads for step in steps.steps)
    assert leaders > 1 and len(set(keys)) == len(keys) == 3 * leaders
    rows = np.concatenate(roots)
    assert len(np.unique(rows, axis=0)) == len(rows) == 3 * 2 * program.comparisons
