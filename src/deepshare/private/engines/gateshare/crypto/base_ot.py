"""Base oblivious transfers: the "simplest OT" of Chou and Orlandi (2015), in the prime-order group of edwards25519.

G generates the group; H is BLAKE2b with a label of its own.

1. The sender draws a scalar a and sends A = a G.
2. For transfer i with choice c, the receiver draws b and sends B = b G + c A, which is uniform whatever c is.
3. The sender's keys are k0 = H(i, A, B, a B) and k1 = H(i, A, B, a B - a A). The receiver's is H(i, A, B, b A) = k_c;
   the other key takes a A as well, which follows from A alone for nobody but the sender (Diffie-Hellman).

PyNaCl binds libsodium's edwards25519 and not its ristretto255, an encoding of the same group without the other seven
eighths of the curve. So every point that arrives is refused unless it lies in the group. libsodium's check is complete
since the version that PyNaCl 1.6.2 brings (CVE-2025-69277).
"""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from deepshare.errors import EngineError

KAPPA = 128  # computational security in bits: base transfers, and bits of a key
KEY_BYTES = 16
POINT_BYTES = 32
SENDER_BYTES, RECEIVER_BYTES = POINT_BYTES, KAPPA * POINT_BYTES  # on the wire
_KEY_LABEL, _SESSION_LABEL = b"deepshare ot key", b"deepshare ot sid"


class Wire(Protocol):
    """The part of `Channel` that transfers need: frames of a known size, in order."""

    def send(self, step: int, *parts: NDArray[Any] | bytes) -> None:
        """Send one frame."""

    def receive(self, step: int, size: int) -> NDArray[np.uint8]:
        """Wait for a frame of this size."""


@dataclass(frozen=True)
class KeyPairs:
    """The sender's result of the base transfers.

    Attributes:
        session: 32 bytes that both parties share and that no other run has; not secret.
        zero: Keys for choice 0, one a transfer.
        one: Keys for choice 1.
    """

    session: bytes
    zero: list[bytes]
    one: list[bytes]


@dataclass(frozen=True)
class ChosenKeys:
    """The receiver's result of the base transfers.

    Attributes:
        session: As the sender's.
        choices: The receiver's bits.
        keys: The keys of its choice, one a transfer.
    """

    session: bytes
    choices: NDArray[np.bool_]
    keys: list[bytes]


def send_base(wire: Wire, step: int) -> KeyPairs:
    """Take the sender's part in 128 base transfers.

    Args:
        wire: The connection to the receiver.
        step: The number of the frames on it.

    Raises:
        EngineError: PyNaCl is missing, or the receiver sent something that is no point of the group.
    """
    sodium = _libsodium()
    a = _scalar(sodium)
    A = sodium.crypto_scalarmult_ed25519_base_noclamp(a)
    aA = sodium.crypto_scalarmult_ed25519_noclamp(a, A)
    wire.send(step, A)
    points = _points(sodium, wire, step, KAPPA)
    zero, one = [], []
    for i, B in enumerate(points):
        aB = sodium.crypto_scalarmult_ed25519_noclamp(a, B)
        zero.append(_key(i, A, B, aB))
        one.append(_key(i, A, B, sodium.crypto_core_ed25519_sub(aB, aA)))
    return KeyPairs(_session(A, points), zero, one)


def receive_base(wire: Wire, step: int) -> ChosenKeys:
    """Take the receiver's part, with random choices.

    Args:
        wire: The connection to the sender.
        step: The number of the frames on it.

    Raises:
        EngineError: PyNaCl is missing, or the sender sent something that is no point of the group.
    """
    sodium = _libsodium()
    choices = np.unpackbits(np.frombuffer(os.urandom(KAPPA // 8), np.uint8), bitorder="little").view(np.bool_)
    (A,) = _points(sodium, wire, step, 1)
    points, keys = [], []
    for i, choice in enumerate(choices):
        b = _scalar(sodium)
        bG = sodium.crypto_scalarmult_ed25519_base_noclamp(b)
        B = (bG, sodium.crypto_core_ed25519_add(bG, A))[int(choice)]  # both are computed: time does not tell the choice
        points.append(B)
        keys.append(_key(i, A, B, sodium.crypto_scalarmult_ed25519_noclamp(b, A)))
    wire.send(step, b"".join(points))
    return ChosenKeys(_session(A, points), choices, keys)


def _libsodium() -> Any:
    try:
        from nacl import bindings
    except ImportError as error:
        raise EngineError("oblivious transfers need PyNaCl: pip install 'deepshare[2pc]'") from error
    if not bindings.has_crypto_core_ed25519:
        raise EngineError("this PyNaCl was built with a minimal libsodium, without edwards25519: install its wheel")
    return bindings


def _scalar(sodium: Any) -> bytes:
    return bytes(sodium.crypto_core_ed25519_scalar_reduce(os.urandom(2 * POINT_BYTES)))


def _points(sodium: Any, wire: Wire, step: int, count: int) -> list[bytes]:
    data = wire.receive(step, count * POINT_BYTES).tobytes()
    points = [data[begin : begin + POINT_BYTES] for begin in range(0, len(data), POINT_BYTES)]
    for i, point in enumerate(points):
        if not sodium.crypto_core_ed25519_is_valid_point(point):
            raise EngineError(
                f"base oblivious transfers: {point.hex()}, point {i} of {count}, is not in the group: "
                "start both parties again"
            )
    return points


def _key(i: int, A: bytes, B: bytes, shared: bytes) -> bytes:
    data = b"".join((i.to_bytes(4, "little"), A, B, shared))
    return hashlib.blake2b(data, digest_size=KEY_BYTES, person=_KEY_LABEL).digest()


def _session(A: bytes, points: Iterable[bytes]) -> bytes:
    return hashlib.blake2b(b"".join((A, *points)), digest_size=32, person=_SESSION_LABEL).digest()
