"""Polynomials mod X^4096 + 1 over integers mod 2^108, and the samples of ring learning with errors (RLWE) made of them.

A sample (A, A s + e) with a public random A, a secret s of coefficients -1, 0, 1, each as likely, and an error e of
standard deviation 13.4 looks random to whoever lacks s. A secret may serve for many A, and an A for many secrets; no
secret serves for one A twice.

Finding s from any number of samples takes 2^132 operations by the lattice attack that is the best one known (uSVP with
BKZ of block size 341, at the cost by which homomorphicencryption.org made its tables in 2018; for 128 bits they allow a
modulus of 109 bits with errors of 3.2, the guidelines of 2024 one of 106 bits, which is as hard as ours). With nothing
but the one dearest step of that attack counted ("core SVP") it is 2^100.
`tests/private/engines/gateshare/crypto/test_security.py` has the formulas, and entries of the tables that they give.

A number is held in six limbs of 18 bits, the lowest first. Products of polynomials use the Fourier transform in
float64. One factor has small coefficients, a secret, a weight's digit or a digit of 15 bits, and limbs are taken from
-2^17 on, so that what is rounded lies within 2^-3 of a whole number, and carries are taken at the end. A modulus that
is a power of two needs no other transform.
"""

import numpy as np
from numpy.typing import NDArray

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.ring import expand

DEGREE = 4096
LIMBS, LIMB_BITS = 6, 18
MODULUS_BITS = LIMBS * LIMB_BITS
SCALE_BITS = MODULUS_BITS - 64
"""Below the 64 bits of a message: room for errors."""
COINS = 21  # on either side of an error
LARGEST_ERROR = 5 * COINS
DIGITS, DIGIT_BITS = 6, 15
DIGITS_BEGIN = MODULUS_BITS - DIGITS * DIGIT_BITS

Limbs = NDArray[np.int64]
"""Numbers mod 2^108, (6, ...)."""
Spectrum = NDArray[np.complex128]

_PRIME, _GENERATOR = 2013265921, 31  # 15 * 2^27 + 1

_LOW = (1 << LIMB_BITS) - 1
_HALF = DEGREE // 2
_TWIST = np.exp(1j * np.pi / DEGREE * np.arange(_HALF))
_TOGETHER = 64  # polynomials that are transformed at a time


def uniform(seed: bytes, count: int, *label: str | int) -> Limbs:
    """Random numbers mod 2^108, (6, count)."""
    words = expand(seed, 4 * LIMBS * count, *label).view(np.uint32).reshape(LIMBS, count)
    return (words & np.uint32(_LOW)).astype(np.int64)


def secrets(seed: bytes, count: int, *label: str | int) -> NDArray[np.int64]:
    """Polynomials with coefficients -1, 0, 1, (count, 4096)."""
    size = count * DEGREE
    # Of 2^64 values one more gives the first of three than gives the others.
    words = expand(seed, 8 * size, *label).view(np.uint64)
    return (words % np.uint64(3)).astype(np.int64).reshape(count, DEGREE) - 1


def errors(seed: bytes, count: int, *label: str | int) -> NDArray[np.int64]:
    """Errors, (count,): d + 4 d', where d and d' are differences of two numbers of heads."""
    words = expand(seed, 16 * count, *label).view(np.uint64).reshape(2, count)
    side = np.uint64((1 << COINS) - 1)
    ours, theirs = (np.bitwise_count((words >> np.uint64(shift)) & side).astype(np.int64) for shift in (0, 32))
    small, large = ours - theirs
    error: NDArray[np.int64] = small + 4 * large
    return error


def carried(limbs: Limbs, lowest: int = 0) -> Limbs:
    """Limbs of 18 bits, from `lowest` on, from any sums of limbs."""
    out, carry = np.empty_like(limbs), np.full_like(limbs[0], -lowest)
    for limb in range(LIMBS):
        whole = limbs[limb] + carry
        out[limb], carry = (whole & _LOW) + lowest, (whole >> LIMB_BITS) - lowest
    return out


def spectrum(polynomials: NDArray[np.int64]) -> Spectrum:
    """Polynomials (..., 4096) of small coefficients, transformed: (..., 2048)."""
    return np.fft.fft((polynomials[..., :_HALF] + 1j * polynomials[..., _HALF:]) * _TWIST)


def waves(limbs: Limbs) -> Spectrum:
    """The limbs of polynomials (6, ..., 4096), transformed, with carries taken so that they are small."""
    return spectrum(carried(limbs, -1 << (LIMB_BITS - 1)))


def whole(transformed: Spectrum) -> NDArray[np.int64]:
    """Polynomials (..., 4096) of whole coefficients from their transforms, which it overwrites."""
    back = np.fft.ifft(transformed)
    back *= _TWIST.conj()
    out = np.empty((*back.shape[:-1], DEGREE), np.int64)
    out[..., :_HALF], out[..., _HALF:] = np.rint(back.real), np.rint(back.imag)
    return out


def times(polynomials: Limbs, factors: Spectrum) -> Limbs:
    """Polynomials (6, n, 4096) times factors (n, 2048) of small coefficients, or one of either: sums to be carried."""
    count = max(polynomials.shape[1], len(factors))
    out = np.empty((LIMBS, count, DEGREE), np.int64)
    for begin in range(0, count, _TOGETHER):
        some = slice(begin, begin + _TOGETHER)
        left = polynomials if polynomials.shape[1] == 1 else polynomials[:, some]
        out[:, some] = whole(waves(left) * (factors if len(factors) == 1 else factors[some]))
    return out


def check_exact() -> None:
    """Multiply polynomials of large coefficients by this machine's Fourier transform, and check the product.

    A product is checked at a root of X^4096 + 1 mod a prime, where one that is wrong is hardly ever right.

    Raises:
        EngineError: It is wrong.
    """
    limbs = uniform(bytes(32), DEGREE, "check") - (1 << (LIMB_BITS - 1))
    factor = digits(uniform(bytes(32), DEGREE, "factor"))[:1]
    found = whole(spectrum(limbs) * spectrum(factor))
    powers, root = np.ones(DEGREE, np.int64), pow(_GENERATOR, (_PRIME - 1) // (2 * DEGREE), _PRIME)
    for place in range(1, DEGREE):
        powers[place] = int(powers[place - 1]) * root % _PRIME
    at_root = [(some % _PRIME * powers % _PRIME).sum(-1) % _PRIME for some in (limbs, factor, found)]
    if not np.array_equal(at_root[0] * at_root[1] % _PRIME, at_root[2]):
        raise EngineError("products of polynomials are not exact on this machine: install another numpy")


def turned(polynomials: NDArray[np.int64], places: int) -> NDArray[np.int64]:
    """Polynomials (..., 4096) times X^places, which is at least 0 and below 4096."""
    split = DEGREE - places
    return np.concatenate([-polynomials[..., split:], polynomials[..., :split]], -1)


def conjugated(polynomials: NDArray[np.int64], power: int) -> NDArray[np.int64]:
    """Polynomials (..., 4096) with X^power, an odd one, in the place of X."""
    back = pow(power, -1, 2 * DEGREE)
    origin = np.arange(DEGREE) * back % (2 * DEGREE)  # of what gets to each place, or to that with another sign
    out = np.take(polynomials, origin % DEGREE, -1)
    out *= np.where(origin < DEGREE, 1, -1)
    return out


def digits(limbs: Limbs) -> NDArray[np.int64]:
    """Numbers (6, ...) as six digits of 15 bits, from -2^14 on, of 2^18, 2^33 and so on: (6, ...)."""
    low, high = _words(carried(limbs))
    out, carry = np.empty(limbs.shape, np.int64), np.full(limbs.shape[1:], 1 << (DIGIT_BITS - 1), np.int64)
    carry += (low >> np.uint64(DIGITS_BEGIN - 1)).view(np.int64) & 1  # to the nearest
    for place in range(DIGITS):
        at = DIGITS_BEGIN + DIGIT_BITS * place
        word = low >> np.uint64(at) | high << np.uint64(64 - at) if at < 64 else high >> np.uint64(at - 64)
        sums = (word.view(np.int64) & ((1 << DIGIT_BITS) - 1)) + carry
        out[place] = (sums & ((1 << DIGIT_BITS) - 1)) - (1 << (DIGIT_BITS - 1))
        carry = (sums >> DIGIT_BITS) + (1 << (DIGIT_BITS - 1))
    return out


def packed(limbs: Limbs, dropped: int) -> NDArray[np.uint8]:
    """Numbers without their lowest bits, which are an even number of halves of bytes: (..., bytes)."""
    low, high = _words(limbs)
    both = np.stack([(low >> np.uint64(dropped)) | (high << np.uint64(64 - dropped)), high >> np.uint64(dropped)], -1)
    return both.view(np.uint8)[..., : packed_bytes(dropped)]


def packed_bytes(dropped: int) -> int:
    """Bytes of a number without its lowest bits."""
    return (MODULUS_BITS - dropped) // 8


def unpacked(data: NDArray[np.uint8], shape: tuple[int, ...], dropped: int) -> Limbs:
    """Numbers (6, *shape) from `packed`, with the middle of what was dropped in its place."""
    size = packed_bytes(dropped)
    both = np.zeros((data.size // size, 16), np.uint8)
    both[:, :size] = data.reshape(-1, size)
    low, high = both.view(np.uint64).T
    shift = np.uint64(dropped)
    lower = (low << shift) + np.uint64(1 << (dropped - 1))
    return _limbs(lower, (high << shift) | (low >> np.uint64(64 - dropped))).reshape(LIMBS, *shape)


def scaled(message: NDArray[np.int64], below: int = 0) -> Limbs:
    """Messages mod 2^64, at the upper end of the modulus, or so many bits below."""
    words, bits = message.view(np.uint64), SCALE_BITS - below
    return _limbs(words << np.uint64(bits), words >> np.uint64(64 - bits))


def upper(limbs: Limbs) -> NDArray[np.int64]:
    """The 64 bits at the upper end, rounded down."""
    low, high = _words(limbs)
    return ((low >> np.uint64(SCALE_BITS)) | (high << np.uint64(64 - SCALE_BITS))).view(np.int64)


def _words(limbs: Limbs) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The lower 64 bits and the upper 44."""
    a, b, c, d, e, f = (limb.view(np.uint64) for limb in np.ascontiguousarray(limbs))
    low = a | (b << np.uint64(18)) | (c << np.uint64(36)) | (d << np.uint64(54))
    return low, (d >> np.uint64(10)) | (e << np.uint64(8)) | (f << np.uint64(26))


def _limbs(low: NDArray[np.uint64], high: NDArray[np.uint64]) -> Limbs:
    parts = [low, low >> np.uint64(18), low >> np.uint64(36), (low >> np.uint64(54)) | (high << np.uint64(10))]
    parts += [high >> np.uint64(8), high >> np.uint64(26)]
    return (np.stack(parts) & np.uint64(_LOW)).view(np.int64)
