"""Base transfers: the chosen key at the receiver, both at the sender, and no point outside the group."""

import sys

import numpy as np
import pytest

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.base_ot import (
    KAPPA,
    RECEIVER_BYTES,
    SENDER_BYTES,
    ChosenKeys,
    KeyPairs,
    receive_base,
    send_base,
)
from deepshare.private.transport.channel import Channel
from tests.private.engines.gateshare.crypto.two_ends import Payload, at_both_ends, well

sodium = pytest.importorskip("nacl.bindings", reason="PyNaCl is not installed")

STEP = 3
PRIME = 2**255 - 19
BASE = bytes.fromhex("58" + "66" * 31)
SECOND_ORDER = (PRIME - 1).to_bytes(32, "little")
EIGHTH_ORDER = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")
# Neither is found by a check that knows the points of small order alone.
MIXED = [sodium.crypto_core_ed25519_add(BASE, point) for point in (SECOND_ORDER, EIGHTH_ORDER)]
INVALID = {
    "the neutral element": (1).to_bytes(32, "little"),
    "zero": bytes(32),
    "order two": SECOND_ORDER,
    "order eight": EIGHTH_ORDER,
    "not in canonical form": (PRIME + 1).to_bytes(32, "little"),
    "not on the curve": (2).to_bytes(32, "little"),
    "order two more": MIXED[0],
    "order eight more": MIXED[1],
}


def send(channel: Channel) -> KeyPairs:
    return send_base(channel, STEP)


def receive(channel: Channel) -> ChosenKeys:
    return receive_base(channel, STEP)


def test_the_receiver_has_the_key_of_its_choice_and_not_the_other() -> None:
    seen = set()
    for _ in range(3):
        ends = well(at_both_ends(send, receive))
        pairs, chosen = ends.results
        assert pairs.session == chosen.session and len(chosen.choices) == KAPPA
        assert chosen.keys == [
            pair[int(choice)] for *pair, choice in zip(pairs.zero, pairs.one, chosen.choices, strict=True)
        ]
        assert len({*pairs.zero, *pairs.one}) == 2 * KAPPA and {len(key) for key in pairs.zero} == {16}
        assert 20 < chosen.choices.sum() < KAPPA - 20
        assert ends.sent == [SENDER_BYTES, RECEIVER_BYTES] == [32, 4096]
        seen |= {pairs.session, *pairs.zero, *pairs.one}
    assert len(seen) == 3 * (1 + 2 * KAPPA)  # a run has nothing in common with another


@pytest.mark.parametrize("what", INVALID)
def test_a_point_outside_the_group_is_refused_by_the_receiver(what: str) -> None:
    point = np.frombuffer(INVALID[what], np.uint8)
    ends = at_both_ends(send, receive, (lambda _, payload: point, None))
    assert isinstance(ends.errors[1], EngineError)
    assert ends.lines[1] == (
        f"base oblivious transfers: {INVALID[what].hex()}, point 0 of 1, is not in the group: start both parties again"
    )
    assert isinstance(ends.errors[0], ConnectionError) and "\n" not in ends.lines[0]


@pytest.mark.parametrize("what", INVALID)
def test_a_point_outside_the_group_is_refused_by_the_sender(what: str) -> None:
    def spoil(_: int, payload: Payload) -> Payload:
        payload[32 * 77 : 32 * 78] = np.frombuffer(INVALID[what], np.uint8)
        return payload

    ends = at_both_ends(send, lambda channel: (receive(channel), channel.receive(STEP, 1)), (None, spoil))
    assert isinstance(ends.errors[0], EngineError)
    assert f"{INVALID[what].hex()}, point 77 of 128, is not in the group" in ends.lines[0]
    assert isinstance(ends.errors[1], ConnectionError) and "\n" not in ends.lines[1]


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_point_of_another_length_is_refused(size: int) -> None:
    ends = at_both_ends(send, receive, (lambda _, payload: np.resize(payload, size), None))
    assert isinstance(ends.errors[1], EngineError) and f"has {size} bytes, not 32" in ends.lines[1]
    assert isinstance(ends.errors[0], ConnectionError)


def test_without_pynacl_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nacl", None)
    ends = at_both_ends(send, receive)
    assert ends.lines == ["oblivious transfers need PyNaCl: pip install 'deepshare[2pc]'"] * 2
