"""The extension: against one written bit by bit, on every choice; nothing is used twice, and nothing wrong is used."""

import itertools
import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.ot import measure
from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto import ot
from deepshare.private.engines.gateshare.crypto.dcf import Bits, Words
from deepshare.private.engines.gateshare.crypto.ot import DONE_BYTES, OtReceiver, OtSender, extension_bytes
from deepshare.private.engines.gateshare.crypto.ring import coins, derive, expand
from deepshare.private.transport.channel import Channel
from tests.private.engines.gateshare.crypto.known_base import SEED, STEP, base, is_uniform
from tests.private.engines.gateshare.crypto.two_ends import Ends, Payload, Work, at_both_ends, well

SIZES = [1, 2, 7, 8, 9, 63, 64, 65, 127, 128, 129, 200, 1000]
HEAD, CHECK = 16, 32


def run(
    sender: Callable[[OtSender], Any],
    receiver: Callable[[OtReceiver], Any],
    change: Callable[[int, Payload], Payload] | None = None,
    seeds: tuple[bytes, bytes] = (SEED, SEED),
) -> Ends:
    """A session from known base transfers; payloads of the receiver may be changed on the way."""
    return at_both_ends(
        lambda channel: sender(OtSender(channel, STEP, base(seeds[0])[0])),
        lambda channel: receiver(OtReceiver(channel, STEP, base(seeds[1])[1])),
        (None, change),
    )


def random(choices: Bits) -> tuple[Words, Words, Words]:
    ends = well(run(lambda sender: sender.random(len(choices)), lambda receiver: receiver.random(choices)))
    (zero, one), chosen = ends.results
    return zero, one, chosen


def chosen_of(zero: Words, one: Words, choices: Bits) -> Words:
    return np.where(choices[:, None], one, zero)


def unpacked(planes: Payload, count: int) -> Bits:
    return np.unpackbits(planes, axis=1, count=count, bitorder="little").view(np.bool_)


# Bit by bit


def stream_bits(key: bytes, count: int) -> list[int]:
    data = Cipher(algorithms.AES128(key), modes.CTR(bytes(16))).encryptor().update(bytes(-(-count // 8)))
    return [data[i // 8] >> i % 8 & 1 for i in range(count)]


def tweaked_hash(session: bytes, i: int, row: list[int]) -> int:
    encryptor = Cipher(algorithms.AES128(derive(session, "ot", "rows")[:16]), modes.ECB()).encryptor()

    def permute(x: int) -> int:
        return int.from_bytes(encryptor.update(x.to_bytes(16, "little")), "little")

    inner = permute(sum(bit << j for j, bit in enumerate(row)))
    return permute(inner ^ i) ^ inner


def bit_by_bit(choices: Bits) -> tuple[list[list[int]], list[int], list[int], list[int]]:
    """The columns u of the choices, the sender's k0 and k1, and the receiver's keys."""
    chosen, pairs = base()
    t0 = [stream_bits(key, len(choices)) for key in pairs.zero]
    t1 = [stream_bits(key, len(choices)) for key in pairs.one]
    s = [int(bit) for bit in chosen.choices]
    u = [[t0[j][i] ^ t1[j][i] ^ int(r) for i, r in enumerate(choices)] for j in range(128)]
    q = [
        [bit ^ s[j] & u[j][i] for i, bit in enumerate(stream_bits(key, len(choices)))]
        for j, key in enumerate(chosen.keys)
    ]
    zero, one, received = [], [], []
    for i in range(len(choices)):
        zero.append(tweaked_hash(chosen.session, i, [q[j][i] for j in range(128)]))
        one.append(tweaked_hash(chosen.session, i, [q[j][i] ^ s[j] for j in range(128)]))
        received.append(tweaked_hash(chosen.session, i, [t0[j][i] for j in range(128)]))
    return u, zero, one, received


def as_numbers(keys: Words) -> list[int]:
    return [int(low) | int(high) << 64 for low, high in keys]


@pytest.mark.parametrize("count", SIZES)
def test_keys_and_matrix_are_those_of_an_extension_bit_by_bit(count: int) -> None:
    choices = coins(SEED, count, "r")
    ends = well(run(lambda sender: sender.random(count), lambda receiver: receiver.random(choices)))
    (zero, one), chosen = ends.results
    u, *keys = bit_by_bit(choices)
    assert [as_numbers(part) for part in (zero, one, chosen)] == keys
    columns = np.unpackbits(ends.frames[1][0][HEAD:-CHECK].reshape(128, -1), axis=1, count=count, bitorder="little")
    assert columns.tolist() == u


# Choices


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("bit", [False, True])
def test_equal_choices(count: int, bit: bool) -> None:
    zero, one, chosen = random(np.full(count, bit))
    assert np.array_equal(chosen, one if bit else zero)
    assert not (zero == one).all(axis=1).any()


def test_every_pattern_of_choices() -> None:
    patterns = np.array(list(itertools.product([False, True], repeat=9)))
    zero, one, chosen = random(patterns.reshape(-1))
    assert np.array_equal(chosen, chosen_of(zero, one, patterns.reshape(-1)))
    assert len(np.unique(np.concatenate([zero, one]), axis=0)) == 2 * patterns.size


def test_every_pattern_as_a_call_of_its_own_within_a_session() -> None:
    patterns = [np.array(bits, np.bool_) for size in (1, 2, 3, 4) for bits in itertools.product([0, 1], repeat=size)]
    ends = well(
        run(
            lambda sender: [sender.random(len(choices)) for choices in patterns],
            lambda receiver: [receiver.random(choices) for choices in patterns],
        )
    )
    for choices, (zero, one), chosen in zip(patterns, *ends.results, strict=True):
        assert np.array_equal(chosen, chosen_of(zero, one, choices))
    every = np.concatenate([key for pair in ends.results[0] for key in pair])
    assert len(np.unique(every, axis=0)) == len(every)  # no call repeats another


@pytest.mark.parametrize("count", [255, 256, 257, 511, 768, 1000])
def test_batches_follow_one_another(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ot, "BATCH", 256)
    choices = coins(SEED, count)
    zero, one, chosen = random(choices)
    assert np.array_equal(chosen, chosen_of(zero, one, choices))
    assert len(np.unique(np.concatenate([zero, one]), axis=0)) == 2 * count


def test_no_transfers_at_all() -> None:
    zero, one, chosen = random(np.zeros(0, np.bool_))
    assert zero.shape == one.shape == chosen.shape == (0, 2)


# Bits


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("width", [1, 2, 7, 64])
def test_bits_are_the_lowest_of_keys_packed(count: int, width: int) -> None:
    choices = coins(SEED, count, "r")
    ends = well(run(lambda sender: sender.bits(count, width), lambda receiver: receiver.bits(choices, width)))
    (zero, one), chosen = ends.results
    for planes, keys in zip((zero, one, chosen), random(choices), strict=True):
        assert planes.shape == (width, -(-count // 8))
        assert np.array_equal(unpacked(planes, count), [(keys[:, 0] >> np.uint64(place)) & 1 for place in range(width)])
    assert len(ends.frames[1]) == 1 and ends.sent == [DONE_BYTES, extension_bytes(count)]


def test_bits_of_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ot, "BATCH", 64)
    choices = coins(SEED, 203, "r")
    ends = well(run(lambda sender: sender.bits(203), lambda receiver: receiver.bits(choices)))
    for planes, keys in zip((*ends.results[0], ends.results[1]), random(choices), strict=True):
        assert np.array_equal(unpacked(planes, 203)[0], keys[:, 0] & 1)


def test_bits_give_shares_of_products_with_the_same_choice() -> None:
    choices = coins(SEED, 1000, "r")
    ends = well(run(lambda sender: sender.bits(1000, 2), lambda receiver: receiver.bits(choices, 2)))
    (zero, one), chosen = ends.results
    factors = unpacked(zero ^ one, 1000)
    assert np.array_equal(unpacked(zero ^ chosen, 1000), factors & choices)
    assert {(int(a), int(b), int(r)) for a, b, r in zip(*factors, choices, strict=True)} == {
        *itertools.product([0, 1], repeat=3)
    }


@pytest.mark.parametrize("width", [0, 65])
def test_a_width_without_bits_is_refused(width: int) -> None:
    ends = run(lambda sender: sender.bits(8, width), lambda receiver: receiver.bits(np.ones(8, np.bool_), width))
    assert ends.lines == [f"a width of {width} bits: give 1 to 64"] * 2


# Correlated


EDGES = [0, 1, (1 << 64) - 1, 1 << 63, (1 << 63) - 1, 1 << 32, 0x0123456789ABCDEF]


def correlated(choices: Bits, index: list[int], values: list[int]) -> Ends:
    order, numbers = np.array(index, np.intp), np.array(values, np.uint64)
    return well(
        run(
            lambda sender: sender.correlated(len(choices), order, numbers),
            lambda receiver: receiver.correlated(choices, order),
        )
    )


@pytest.mark.parametrize("bit", [False, True])
def test_products_of_edge_values(bit: bool) -> None:
    ends = correlated(np.array([bit]), [0] * len(EDGES), EDGES)
    assert (ends.results[0] + ends.results[1]).tolist() == [value * bit for value in EDGES]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_products_for_groups_of_any_size_in_any_order(data: st.DataObject) -> None:
    choices = np.array(data.draw(st.lists(st.booleans(), min_size=1, max_size=140)), np.bool_)
    index = data.draw(st.lists(st.integers(0, len(choices) - 1), max_size=400))
    values = expand(SEED, 8 * len(index)).view(np.uint64)
    ends = correlated(choices, index, values.tolist())
    assert np.array_equal(ends.results[0] + ends.results[1], values * choices[np.array(index, np.intp)])
    assert ends.sent == [DONE_BYTES + 8 * len(index), extension_bytes(len(choices))]


def test_many_values_of_one_transfer_are_masked_each_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ot, "BATCH", 1 << 10)
    ends = correlated(np.array([True, False]), [0, 1] * 5000, [7] * 10_000)
    assert len(np.unique(ends.results[0])) == len(np.unique(ends.results[1])) == 10_000
    corrections = np.concatenate(ends.frames[0][1:])
    assert len(ends.frames[0]) == 1 + 10 and len(np.unique(corrections.view(np.uint64))) == 10_000


def test_corrections_of_another_number_of_values_are_refused() -> None:
    index = np.zeros(9, np.intp)
    ends = run(
        lambda sender: (sender.correlated(1, index[:8], np.zeros(8, np.uint64)), sender.random(1)),
        lambda receiver: receiver.correlated(np.array([True]), index),
    )
    assert isinstance(ends.errors[1], EngineError) and "has 64 bytes, not 72" in ends.lines[1]
    assert isinstance(ends.errors[0], ConnectionError) and "\n" not in ends.lines[0]


# On the wire


@pytest.mark.parametrize("count", [*SIZES, (1 << 16) + 1])
def test_bytes_equal_the_formula(count: int) -> None:
    ends = well(run(lambda sender: sender.random(count), lambda receiver: receiver.random(coins(SEED, count))))
    batches = [min(1 << 16, count - first) for first in range(0, count, 1 << 16)]
    matrices = sum(16 * 128 * (-(-size // 128) + 1) + HEAD + CHECK for size in batches)
    assert ends.sent == [8, matrices] == [DONE_BYTES, extension_bytes(count)]


def test_both_directions_after_base_transfers_on_one_connection() -> None:
    pytest.importorskip("nacl", reason="PyNaCl is not installed")
    ours, theirs = coins(SEED, 500, "ours"), coins(SEED, 700, "theirs")

    def first(channel: Channel) -> Any:
        sender, receiver = OtSender.begin(channel, STEP), OtReceiver.begin(channel, STEP)
        return sender.random(700), receiver.random(ours)

    def second(channel: Channel) -> Any:
        receiver, sender = OtReceiver.begin(channel, STEP), OtSender.begin(channel, STEP)
        return receiver.random(theirs), sender.random(500)

    ends = well(at_both_ends(first, second))
    (there, mine), (yours, back) = ends.results
    assert np.array_equal(yours, chosen_of(there[0], there[1], theirs))
    assert np.array_equal(mine, chosen_of(back[0], back[1], ours))
    assert ends.sent == [4096 + 32 + DONE_BYTES + extension_bytes(500), 32 + 4096 + extension_bytes(700) + DONE_BYTES]


def test_a_million_one_bit_transfers_need_little_memory() -> None:
    choices = coins(SEED, 1_000_000)
    tracemalloc.start()
    try:
        well(run(lambda sender: sender.bits(1_000_000), lambda receiver: receiver.bits(choices)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20  # both parties, and the 16 MiB that the test keeps of the wire


# What a peer may do wrong


def spoiled(where: int, value: int = 1) -> Callable[[int, Payload], Payload]:
    def change(_: int, payload: Payload) -> Payload:
        payload[where] ^= value
        return payload

    return change


def refused(ends: Ends, *said: str) -> None:
    """The sender says why; the receiver, which waits for it, sees that it hung up."""
    assert isinstance(ends.errors[0], EngineError) and isinstance(ends.errors[1], ConnectionError), ends.errors
    assert all(part in ends.lines[0] for part in said), ends.lines
    assert all("\n" not in line for line in ends.lines)
    assert "the connection to the sender was lost" in ends.lines[1]


def call(change: Callable[[int, Payload], Payload], count: int = 300) -> Ends:
    choices = coins(SEED, count)
    return run(lambda sender: sender.random(count), lambda receiver: receiver.random(choices), change)


FRAME = extension_bytes(300)


@pytest.mark.parametrize(
    "where",
    [
        HEAD,
        HEAD + 1,
        HEAD + 63,
        HEAD + 64 * 77 + 5,
        FRAME // 2,
        FRAME - CHECK - 1,
        FRAME - CHECK,
        FRAME - 16,
        FRAME - 1,
    ],
)
@pytest.mark.parametrize("value", [1, 0x80, 0xFF])
def test_a_corrupted_matrix_or_check_is_refused(where: int, value: int) -> None:
    refused(
        call(spoiled(where, value)), "matrix of 300 oblivious transfers from number 0 on", "start both parties again"
    )


@pytest.mark.parametrize("column", range(0, 128, 9))
def test_one_wrong_bit_in_any_column_is_refused(column: int) -> None:
    refused(call(spoiled(HEAD + column * 64 + column % 38)), "does not belong to this session")


def test_columns_of_different_choices_are_refused() -> None:
    """The receiver that deviates: its matrix is consistent but in one column, and its check fits what it has sent."""
    choices = coins(SEED, 300)

    def deviate(receiver: OtReceiver) -> Words:
        draw = receiver._one.draw

        def changed(words: int) -> Words:
            columns = draw(words)
            columns[np.flatnonzero(base()[0].choices)[3]] ^= np.uint64(2)
            return columns

        receiver._one.draw = changed  # type: ignore[method-assign]
        return receiver.random(choices)

    refused(run(lambda sender: sender.random(300), deviate), "does not belong to this session")


@pytest.mark.parametrize("size", [0, 1, FRAME - 1, FRAME + 1, 2 * FRAME])
def test_a_matrix_of_another_length_is_refused(size: int) -> None:
    refused(call(lambda _, payload: np.resize(payload, size)), f"has {size} bytes, not {FRAME}")


def test_another_number_of_transfers_in_a_matrix_of_the_same_size_is_refused() -> None:
    ends = run(lambda sender: sender.random(100), lambda receiver: receiver.random(coins(SEED, 101)))
    refused(ends, "the receiver offers 101 oblivious transfers from number 0 on, but 100 from number 0 on are next")


def test_a_repeated_matrix_is_refused() -> None:
    frames: list[Payload] = []

    def repeat(number: int, payload: Payload) -> Payload:
        frames.append(payload)
        return frames[0]

    choices = coins(SEED, 50)
    ends = run(
        lambda sender: [sender.random(50) for _ in range(2)],
        lambda receiver: [receiver.random(choices) for _ in range(2)],
        repeat,
    )
    refused(ends, "50 oblivious transfers from number 0 on, but they were used already: start both parties again")
    assert len(frames) == 2


def test_a_repeated_matrix_under_the_next_number_is_refused() -> None:
    frames: list[Payload] = []

    def repeat(number: int, payload: Payload) -> Payload:
        frames.append(payload)
        return np.concatenate([payload[:HEAD], frames[0][HEAD:]])

    choices = coins(SEED, 50)
    ends = run(
        lambda sender: [sender.random(50) for _ in range(2)],
        lambda receiver: [receiver.random(choices) for _ in range(2)],
        repeat,
    )
    refused(ends, "matrix of 50 oblivious transfers from number 50 on does not belong to this session")


def test_skipped_transfers_are_refused() -> None:
    def skip(receiver: OtReceiver) -> Words:
        receiver.transfers = 128
        return receiver.random(coins(SEED, 50))

    refused(run(lambda sender: sender.random(50), skip), "from number 128 on, but 50 from number 0 on are next")


def test_another_session_is_refused() -> None:
    ends = run(
        lambda sender: sender.random(10),
        lambda receiver: receiver.random(coins(SEED, 10)),
        seeds=(SEED, derive(SEED, "other")),
    )
    refused(ends, "does not belong to this session")


def test_a_sender_that_counts_otherwise_is_refused() -> None:
    choices = coins(SEED, 10)
    ends = at_both_ends(
        lambda channel: OtSender(channel, STEP, base()[0]).random(10),
        lambda channel: OtReceiver(channel, STEP, base()[1]).random(choices),
        (spoiled(0), None),
    )
    assert isinstance(ends.errors[1], EngineError)
    assert ends.lines[1] == "the sender has counted 11 oblivious transfers, not 10: start both parties again"


@pytest.mark.parametrize("party", [0, 1])
def test_a_peer_that_hangs_up_ends_the_other(party: int) -> None:
    works: list[Work] = [lambda channel: OtSender(channel, STEP, base()[0]).random(9)]
    works.append(lambda channel: OtReceiver(channel, STEP, base()[1]).random(np.ones(9, np.bool_)))
    works[party] = lambda channel: None
    ends = at_both_ends(works[0], works[1])
    assert isinstance(ends.errors[1 - party], ConnectionError) and ends.errors[party] is None


# What a party sees


@pytest.fixture
def fixed_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that tests of distributions see is fixed: they fail always or never."""
    numbers = itertools.count()
    monkeypatch.setattr(os, "urandom", lambda size: expand(SEED, size, "urandom", next(numbers)).tobytes())


@pytest.mark.usefixtures("fixed_masks")
@pytest.mark.parametrize("choose", [np.zeros, np.ones])
def test_every_message_and_key_looks_uniform(choose: Callable[..., Any]) -> None:
    choices, values = choose(20_000, np.bool_), np.zeros(20_000, np.uint64)
    ends = well(
        run(
            lambda sender: (
                sender.random(20_000),
                sender.bits(20_000, 3),
                sender.correlated(20_000, np.arange(20_000), values),
            ),
            lambda receiver: (
                receiver.random(choices),
                receiver.bits(choices, 3),
                receiver.correlated(choices, np.arange(20_000)),
            ),
        )
    )
    ((zero, one), bits, share), (chosen, few, other) = ends.results
    parts = [zero, one, *bits, share, chosen, few, other, zero ^ one, bits[0] ^ bits[1]]
    parts += [frame[HEAD:] for frame in ends.frames[1]]  # the matrix and its check
    parts += [frame for frame in ends.frames[0] if len(frame) > DONE_BYTES]  # corrections of zeros
    for part in parts:
        assert is_uniform(np.ascontiguousarray(part).reshape(-1).view(np.uint8))


@pytest.mark.usefixtures("fixed_masks")
def test_the_check_tells_nothing_about_choices() -> None:
    """h(r) of the same choices, all zero: it would be zero but for the mask."""
    choices = np.zeros(1, np.bool_)
    ends = well(
        run(
            lambda sender: [sender.random(1) for _ in range(500)],
            lambda receiver: [receiver.random(choices) for _ in range(500)],
        )
    )
    assert is_uniform(np.concatenate([frame[-CHECK:-16] for frame in ends.frames[1]]))


def test_the_other_key_is_independent_of_the_receivers_view() -> None:
    choices = coins(SEED, 40_000, "r")
    zero, one, chosen = random(choices)
    other = chosen_of(one, zero, choices)
    view = [np.unpackbits(part.view(np.uint8).reshape(len(part), -1), axis=1) for part in (chosen, choices[:, None])]
    hidden = 1.0 - 2.0 * np.unpackbits(other.view(np.uint8), axis=1)
    for seen in (view[0], view[1][:, -1:], np.roll(view[0], 1, axis=0)):  # its key, its choice, the key before
        products = (1.0 - 2.0 * seen).T @ hidden / np.sqrt(len(choices))  # 128 x 128 standard normal numbers
        assert abs(products).max() < 5.5 and abs(products.var() - 1) < 0.15


def test_the_mask_of_a_value_is_independent_of_the_receivers_share() -> None:
    """Choice 0: the correction is the value and the mask of the other key, about which the receiver knows nothing."""
    count = 20_000
    values = np.full(count, 12345, np.uint64)
    ends = correlated(np.zeros(1, np.bool_), [0] * count, values.tolist())
    correction, share = ends.frames[0][1].view(np.uint64), ends.results[1]
    for mixed in (correction - share, correction ^ share, correction - values):
        assert is_uniform(np.ascontiguousarray(mixed).view(np.uint8))


def test_the_benchmark_runs() -> None:
    pytest.importorskip("nacl", reason="PyNaCl is not installed")
    figures = measure(3000, 50, 1000, repeats=1)
    assert figures["bytes"] == extension_bytes(3000) + DONE_BYTES and figures["base_bytes"] == 4128
