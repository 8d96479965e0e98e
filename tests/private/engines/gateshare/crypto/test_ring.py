"""Encoding is to the nearest unit; truncation is right up to one while the client's share is outside the window."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.ring import (
    WINDOW,
    decode,
    encode,
    is_safe_to_truncate,
    truncate_client,
    truncate_server,
)

RING = 1 << 64


def element(value: int) -> Tensor:
    return torch.tensor([(value + (RING >> 1)) % RING - (RING >> 1)])


def truncated(z: int, client: int, bits: int) -> int:
    """Truncate shares of z and put them together again."""
    return int(truncate_client(element(client), bits) + truncate_server(element(z - client), bits))


def test_numbers_come_back_within_half_a_unit() -> None:
    x = torch.linspace(-300, 300, 1001, dtype=torch.float64)
    assert (decode(encode(x, 16), 16) - x).abs().max() <= 2**-17
    assert torch.equal(encode(decode(torch.arange(-9, 9), 12), 12), torch.arange(-9, 9))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2.0**47])
def test_what_does_not_fit_is_refused(value: float) -> None:
    with pytest.raises(EngineError, match="16 fractional bits"):
        encode(torch.tensor([0.0, value]), 16)
    encode(torch.tensor([-(2.0**46), 2.0**46]), 16)


@given(st.integers(-WINDOW, WINDOW), st.integers(WINDOW, RING - WINDOW - 1), st.integers(0, 40))
def test_truncation_is_right_up_to_one_unit(z: int, client: int, bits: int) -> None:
    assert is_safe_to_truncate(element(client))
    assert abs(truncated(z, client, bits) - z / 2**bits) <= 1


@pytest.mark.parametrize("bits", [1, 12, 14, 16])
@pytest.mark.parametrize("z", [WINDOW, WINDOW - 1, 1, 0, -1, 1 - WINDOW, -WINDOW])
@pytest.mark.parametrize("client", [WINDOW, RING - WINDOW - 1])
def test_truncation_is_right_just_outside_the_window(z: int, client: int, bits: int) -> None:
    assert is_safe_to_truncate(element(client))
    assert abs(truncated(z, client, bits) - z / 2**bits) <= 1


@pytest.mark.parametrize(("z", "client"), [(WINDOW, WINDOW - 1), (WINDOW, 0), (-WINDOW, RING - WINDOW), (-1, RING - 1)])
def test_truncation_fails_just_inside_the_window_and_the_screen_sees_it(z: int, client: int) -> None:
    assert not is_safe_to_truncate(torch.cat([element(1 << 50), element(client)]))
    assert abs(truncated(z, client, 14) - z / 2**14) > 2**48


def test_truncation_by_no_bits_changes_nothing() -> None:
    for z, client in [(WINDOW, 0), (-5, RING - 1), (7, 1 << 63)]:
        assert truncated(z, client, 0) == z


def test_shares_are_shifted_as_unsigned_numbers() -> None:
    assert truncate_client(element(-1), 60).item() == 15
    assert truncate_server(element(1), 60).item() == -15
    assert truncate_server(element(0), 60).item() == 0
