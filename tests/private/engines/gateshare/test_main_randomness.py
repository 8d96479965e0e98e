"""Whole sessions: all that is random comes from the operating system, and is drawn anew each time."""

import random
from itertools import combinations

import numpy as np
import pytest
import torch

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
