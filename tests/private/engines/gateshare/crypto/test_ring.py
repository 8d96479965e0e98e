"""Encoding is to the nearest unit; truncation is right up to one while the client's share is outside the window.

Masks follow from seed and label alone, look uniform, and never repeat between labels.
"""

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto import ring
from deepshare.private.engines.gateshare.crypto.ring import (
    WINDOW,
    coins,
    decode,
    derive,
    encode,
    expand,
    fresh_seed,
    is_safe_to_truncate,
    mask,
    truncate_client,
    truncate_server,
)

RING = 1 << 64
SEED = bytes(range(32))


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


def test_a_public_zero_may_be_truncated() -> None:
    assert is_safe_to_truncate(torch.cat([element(1 << 50), element(0)]))
    assert truncated(0, 0, 14) == 0


@pytest.mark.parametrize(("z", "client"), [(WINDOW, WINDOW - 1), (WINDOW, 1), (-WINDOW, RING - WINDOW), (-1, RING - 1)])
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


def test_the_same_seed_and_label_give_the_same_mask() -> None:
    assert torch.equal(mask(SEED, (3, 4, 5), "layer", 7), mask(SEED, (3, 4, 5), "layer", 7))
    assert mask(SEED, (3, 4, 5), "layer", 7).dtype == torch.int64


def test_masks_do_not_change_between_releases() -> None:
    assert bytes(expand(SEED, 8, "layer", 7)).hex() == "8e1ea82e04017eb6"
    assert mask(SEED, (1,), "layer", 7).item() == int.from_bytes(
        bytes(expand(SEED, 8, "layer", 7)), "little", signed=True
    )


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, (1 << 17) - 1, 1 << 17, (1 << 18) + 5])
def test_expansion_is_the_key_stream_whatever_its_length(count: int) -> None:
    encryptor = Cipher(algorithms.AES256(derive(SEED, "x")), modes.CTR(bytes(16))).encryptor()
    assert expand(SEED, count, "x").tobytes() == encryptor.update(bytes(count))


def test_other_seeds_and_labels_give_other_masks() -> None:
    labels: list[tuple[str | int, ...]] = [
        (),
        ("a",),
        ("b",),
        ("a", "b"),
        ("ab",),
        ("a/b",),
        ("a", 1),
        ("a", "1"),
        ("1",),
    ]
    masks = [expand(seed, 16, *label).tobytes() for seed in (SEED, SEED[::-1], SEED[:16]) for label in labels]
    assert len(set(masks)) == len(masks)


def test_seeds_are_fresh() -> None:
    seeds = {fresh_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert {len(seed) for seed in seeds} == {32}


def test_no_other_generator_is_asked() -> None:
    torch.manual_seed(0)
    first = mask(SEED, (9,), "x")
    torch.manual_seed(1)
    assert torch.equal(first, mask(SEED, (9,), "x"))
    assert "random" not in vars(ring)


def test_every_byte_of_a_mask_is_uniform() -> None:
    planes = mask(SEED, (1 << 16,), "x").numpy().view(np.uint8).reshape(-1, 8)
    for plane in planes.T:
        counts = np.bincount(plane, minlength=256)
        assert 140 < ((counts - 256) ** 2 / 256).sum() < 390  # 255 degrees of freedom, six sigma


def test_coins_are_fair_bits() -> None:
    thrown = coins(SEED, 100_003, "x")
    assert thrown.shape == (100_003,) and thrown.dtype == np.bool_
    assert abs(thrown.mean() - 0.5) < 0.01
