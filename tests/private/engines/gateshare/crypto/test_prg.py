"""Masks follow from seed and label alone, look uniform, and never repeat between labels."""

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from deepshare.private.engines.gateshare.crypto import prg
from deepshare.private.engines.gateshare.crypto.prg import coins, derive, expand, fresh_seed, mask

SEED = bytes(range(32))


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
    assert "random" not in vars(prg)


def test_every_byte_of_a_mask_is_uniform() -> None:
    planes = mask(SEED, (1 << 16,), "x").numpy().view(np.uint8).reshape(-1, 8)
    for plane in planes.T:
        counts = np.bincount(plane, minlength=256)
        assert 140 < ((counts - 256) ** 2 / 256).sum() < 390  # 255 degrees of freedom, six sigma


def test_coins_are_fair_bits() -> None:
    thrown = coins(SEED, 100_003, "x")
    assert thrown.shape == (100_003,) and thrown.dtype == np.bool_
    assert abs(thrown.mean() - 0.5) < 0.01
