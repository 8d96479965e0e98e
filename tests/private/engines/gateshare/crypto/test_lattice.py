"""Arithmetic mod 2^108 against Python's integers, and the distributions of secrets and errors."""

import time
from typing import Any

import numpy as np
import pytest

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto import lattice
from deepshare.private.engines.gateshare.crypto.lattice import DEGREE, LIMB_BITS, MODULUS_BITS, Limbs, Spectrum
from deepshare.private.engines.gateshare.preprocessing.together import LotMaker

SEED = bytes(range(32))
Q = 1 << MODULUS_BITS


def integers(limbs: Limbs) -> list[int]:
    flat = limbs.reshape(len(limbs), -1)
    return [sum(int(limb) << (LIMB_BITS * place) for place, limb in enumerate(column)) for column in flat.T]


@pytest.mark.parametrize("dropped", [4, 12, 20, 28])
def test_what_is_packed_lacks_its_lowest_bits_alone(dropped: int) -> None:
    numbers = lattice.uniform(SEED, 500, "numbers")
    data = lattice.packed(numbers, dropped)
    assert data.shape == (500, (MODULUS_BITS - dropped) // 8)
    back = integers(lattice.unpacked(data.reshape(-1), (500,), dropped))
    for number, found in zip(integers(numbers), back, strict=True):
        assert found == (number >> dropped << dropped) + (1 << (dropped - 1))


def test_messages_stand_at_the_upper_end() -> None:
    messages = np.array([0, 1, -1, 2**63 - 1, -(2**63), 12345678901234567], np.int64)
    limbs = lattice.scaled(messages)
    assert integers(limbs) == [(int(one) % (1 << 64)) << 44 for one in messages]
    assert np.array_equal(lattice.upper(limbs), messages)


def test_carries_wrap_at_the_modulus_whatever_the_signs() -> None:
    rng = np.random.default_rng(2)
    sums = rng.integers(-(1 << 62), 1 << 62, (6, 200))
    carried = lattice.carried(sums)
    assert int(carried.min()) >= 0 and int(carried.max()) < 1 << LIMB_BITS
    expected = [sum(int(limb) << (LIMB_BITS * place) for place, limb in enumerate(column)) % Q for column in sums.T]
    assert integers(carried) == expected


@pytest.mark.parametrize("factor", ["secret", "largest"])
def test_products_of_polynomials_are_exact(factor: str) -> None:
    polynomials = lattice.uniform(SEED, 2 * DEGREE, "polynomials").reshape(6, 2, DEGREE)
    small = lattice.secrets(SEED, 1, "factor")
    if factor == "largest":  # all coefficients as large as they can be, with one sign
        polynomials[:, 0], small = (1 << LIMB_BITS) - 1, np.ones_like(small)
    product = integers(lattice.carried(lattice.times(polynomials, lattice.spectrum(small)))[:, 0])
    whole, expected = integers(polynomials[:, 0]), [0] * (2 * DEGREE)
    for place in (0, 1, 7, DEGREE // 2, DEGREE - 1):
        expected[place] = sum(
            int(small[0, i]) * (whole[place - i] if i <= place else -whole[place - i + DEGREE]) for i in range(DEGREE)
        )
        assert product[place] == expected[place] % Q


def test_a_transform_that_is_not_exact_is_found_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = time.perf_counter()
    lattice.check_exact()
    assert time.perf_counter() - begin < 1  # some milliseconds
    transform = np.fft.ifft

    def inexact(values: Spectrum) -> Spectrum:
        found = transform(values)
        found[3, 1000] += 1
        return found

    monkeypatch.setattr(np.fft, "ifft", inexact)
    nothing: Any = None
    with pytest.raises(EngineError, match="products of polynomials are not exact on this machine"):
        LotMaker.begin(nothing, "client", nothing)


def test_one_polynomial_is_multiplied_by_many_and_many_by_one() -> None:
    polynomials = lattice.uniform(SEED, 3 * DEGREE, "polynomials").reshape(6, 3, DEGREE)
    factors = lattice.spectrum(lattice.secrets(SEED, 3, "factors"))
    each = lattice.times(polynomials, factors)
    for place in range(3):
        only = slice(place, place + 1)
        assert np.array_equal(lattice.times(polynomials[:, only], factors)[:, only], each[:, only])
        assert np.array_equal(lattice.times(polynomials, factors[only])[:, only], each[:, only])


def test_secrets_and_errors_have_their_distributions() -> None:
    secrets = lattice.secrets(SEED, 50, "secrets").reshape(-1)
    counts = [int((secrets == value).sum()) for value in (-1, 0, 1)]
    assert sum(counts) == secrets.size
    assert sum((count - secrets.size / 3) ** 2 / (secrets.size / 3) for count in counts) < 20
    errors = lattice.errors(SEED, 200_000, "errors")
    assert abs(float(errors.mean())) < 0.12 and float(errors.std()) == pytest.approx((17 * 10.5) ** 0.5, rel=0.01)
    assert int((errors % 2).sum()) == pytest.approx(100_000, rel=0.02)
    assert not np.array_equal(errors[:1000], lattice.errors(SEED, 1000, "others"))
