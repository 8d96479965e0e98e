"""The XOR of both parties' results is [x < threshold], and neither key tells the threshold."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto import dcf
from deepshare.private.engines.gateshare.crypto.dcf import Bits, Keys, Words, deal, evaluate, key_bytes
from deepshare.private.engines.gateshare.crypto.ring import expand

SEED = bytes(range(32))
AES_KEY = bytes(range(16))
WIDTHS = [7, 8, 9, 15, 31, 32, 47, 63, 64]


def roots_for(gates: int, seed: bytes = SEED) -> tuple[Words, Words]:
    first, second = (expand(seed, 16 * gates, party).view(np.uint64).reshape(gates, 2) for party in (0, 1))
    return first, second


def numbers(values: list[int]) -> Words:
    return np.array(values, np.uint64)


def compare(x: Words, thresholds: Words, bits: int) -> tuple[Bits, Bits]:
    roots = roots_for(len(x))
    keys = deal(thresholds, bits, roots, AES_KEY)
    first, second = (evaluate(x, party, roots[party], keys, AES_KEY) for party in (0, 1))
    return first, second


def edges(bits: int) -> list[int]:
    top = (1 << bits) - 1
    steps = {0, 1, 2, 63, 64, 65, 127, 128, 129, top // 2, top // 2 + 1, top - 128, top - 127, top - 64, top - 1, top}
    return sorted(value for value in steps if 0 <= value <= top)


@pytest.mark.parametrize("bits", WIDTHS)
def test_edges_against_edges(bits: int) -> None:
    pairs = list(itertools.product(edges(bits), repeat=2))
    x, thresholds = numbers([a for a, _ in pairs]), numbers([b for _, b in pairs])
    first, second = compare(x, thresholds, bits)
    assert np.array_equal(first ^ second, x < thresholds)


@pytest.mark.parametrize("bits", WIDTHS)
def test_random_numbers_and_their_neighbours(bits: int) -> None:
    draw = np.random.default_rng(bits)
    top = np.uint64((1 << bits) - 1)
    thresholds = draw.integers(0, top, 3000, np.uint64, endpoint=True)
    flipped = thresholds ^ (np.uint64(1) << draw.integers(0, bits, 3000, np.uint64))  # departs at every level
    for x in (draw.permutation(thresholds), thresholds, (thresholds + np.uint64(1)) & top, flipped):
        first, second = compare(x, thresholds, bits)
        assert np.array_equal(first ^ second, x < thresholds)


@settings(max_examples=30)
@given(st.integers(7, 64), st.data())
def test_any_width(bits: int, data: st.DataObject) -> None:
    value = st.integers(0, (1 << bits) - 1)
    pairs = data.draw(st.lists(st.tuples(value, value), min_size=1, max_size=20))
    first, second = compare(numbers([a for a, _ in pairs]), numbers([b for _, b in pairs]), bits)
    assert (first ^ second).tolist() == [a < b for a, b in pairs]


def test_bits_above_the_width_do_not_count() -> None:
    x, thresholds = numbers([5, 5, 900]), numbers([6, 5, 1000])
    first, second = compare(x | np.uint64(1 << 40), thresholds, 10)
    assert (first ^ second).tolist() == [True, False, True]


def test_gates_in_chunks_equal_gates_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    x, thresholds = draw.integers(0, 1 << 20, (2, 1003), np.uint64)
    whole = compare(x, thresholds, 20)
    monkeypatch.setattr(dcf, "_CHUNK", 64)
    assert np.array_equal(compare(x, thresholds, 20), whole)


@pytest.mark.parametrize(("gates", "bits", "size"), [(1, 31, 424), (8, 31, 3224), (6144, 31, 2_476_032), (5, 7, 80)])
def test_keys_have_exactly_these_bytes_and_come_back(gates: int, bits: int, size: int) -> None:
    keys = deal(np.arange(gates, dtype=np.uint64), bits, roots_for(gates), AES_KEY)
    assert key_bytes(gates, bits) == size == len(keys.to_bytes())
    again = Keys.from_bytes(keys.to_bytes(), gates, bits)
    assert all(np.array_equal(getattr(keys, part), getattr(again, part)) for part in ("seeds", "leaves", "turns"))


def test_no_gates_are_fine() -> None:
    first, second = compare(numbers([]), numbers([]), 31)
    assert len(first) == len(second) == key_bytes(0, 31) == 0


def test_keys_of_the_wrong_size_are_refused() -> None:
    with pytest.raises(EngineError, match="423 bytes: 1 gates of 31 bits have 424"):
        Keys.from_bytes(bytes(423), 1, 31)


@pytest.mark.parametrize("bits", [0, 6, 65])
def test_other_widths_are_refused(bits: int) -> None:
    with pytest.raises(EngineError, match=f"{bits} bits"):
        key_bytes(1, bits)


def chi_square(data: NDArray[np.uint8]) -> float:
    counts = np.bincount(data, minlength=256)
    return float(((counts - counts.mean()) ** 2 / counts.mean()).sum())


@pytest.mark.parametrize("threshold", [0, 1, 12345, (1 << 31) - 1])
def test_keys_and_results_look_uniform_for_any_threshold(threshold: int) -> None:
    gates = 4096
    roots = roots_for(gates)
    keys = deal(np.full(gates, threshold, np.uint64), 31, roots, AES_KEY)
    for words in (*keys.seeds, keys.leaves):
        for plane in words.view(np.uint8).reshape(gates, 16).T:
            assert 130 < chi_square(plane) < 420  # 255 degrees of freedom; 400 planes, seven sigma
        # The bits that stand apart from the seed.
        assert (abs((words[:, 0, None] >> np.arange(2, dtype=np.uint64) & np.uint64(1)).mean(0) - 0.5) < 0.04).all()
    assert abs(np.unpackbits(keys.turns, axis=1).mean(1) - 0.5).max() < 0.04
    for party in (0, 1):
        assert abs(evaluate(np.full(gates, 99, np.uint64), party, roots[party], keys, AES_KEY).mean() - 0.5) < 0.04


def test_words_of_neighbouring_thresholds_have_nothing_in_common() -> None:
    gates = 4096
    first, second = (
        deal(np.full(gates, threshold, np.uint64), 31, roots_for(gates, seed), AES_KEY)
        for threshold, seed in ((7, SEED), (8, SEED[::-1]))
    )
    for mine, theirs in zip((*first.seeds, first.leaves), (*second.seeds, second.leaves), strict=True):
        assert chi_square((mine ^ theirs).view(np.uint8).ravel()) < 420


def test_another_aes_key_gives_another_tree() -> None:
    thresholds = np.arange(4096, dtype=np.uint64)
    roots = roots_for(4096)
    keys = deal(thresholds, 31, roots, AES_KEY)
    wrong = evaluate(thresholds, 0, roots[0], keys, AES_KEY[::-1])
    right = evaluate(thresholds, 0, roots[0], keys, AES_KEY)
    assert 0.45 < (wrong ^ right).mean() < 0.55


def test_left_right_and_leaf_are_asked_apart() -> None:
    generator = dcf._Generator(AES_KEY)
    block = roots_for(1)[0]

    def answer(seed: dcf.Words, ask: np.uint8) -> bytes:
        blocks = seed.copy()
        lowest = blocks.view(np.uint8)[:1]
        lowest[:] = dcf._asked(lowest, ask)
        generator.replace(blocks)
        return blocks.tobytes()

    answers = {answer(block, ask) for ask in (np.uint8(0), dcf._BYTE_ONE, dcf._BYTE_LEAF)}
    assert len(answers) == 3
    # The two lowest bits of a block are no part of the seed.
    assert answer(block ^ np.array([3, 0], np.uint64), np.uint8(0)) in answers
