"""Oblivious transfers between two parties over a socket, beside a straightforward extension in the same run.

    OMP_NUM_THREADS=1 python benchmarks/ot.py [--count 1000000] [--tiny] [--json]

Seconds are processor time of each party alone, the best of a few; waiting for the other does not count. The
straightforward extension makes the same keys in plain numpy, with one bit in a byte and without a check of the matrix.
Correlated transfers are those of a ResNet-18 with 6,000 gates, one way: a transfer for each gate and all its neurons.
"""

import argparse
import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from deepshare.private.engines.gateshare.crypto.base_ot import KAPPA, ChosenKeys, KeyPairs, receive_base, send_base
from deepshare.private.engines.gateshare.crypto.dcf import Bits, Bytes, Words
from deepshare.private.engines.gateshare.crypto.ot import BATCH, DONE_BYTES, OtReceiver, OtSender, extension_bytes
from deepshare.private.engines.gateshare.crypto.ring import coins, derive, fresh_seed, mask
from deepshare.private.transport.channel import Channel

GATES, NEURONS = 6_000, 557_056
STEP = 0


@dataclass
class Run:
    """Results, the least processor seconds and the payload bytes of sender and receiver."""

    results: list[Any]
    seconds: list[float]
    sent: list[int]


def both(sender: Callable[[Channel], Any], receiver: Callable[[Channel], Any], repeats: int) -> Run:
    """Run both parties, a few times."""
    runs = [_both(sender, receiver) for _ in range(repeats)]
    return Run(runs[-1].results, [min(run.seconds[party] for run in runs) for party in (0, 1)], runs[-1].sent)


def _both(*parties: Callable[[Channel], Any]) -> Run:
    left, right = socket.socketpair()
    channels = [Channel(left, "receiver"), Channel(right, "sender")]
    run = Run([None, None], [0.0, 0.0], [0, 0])

    def work(party: int) -> None:
        began = time.thread_time()
        run.results[party] = parties[party](channels[party])
        run.seconds[party], run.sent[party] = time.thread_time() - began, channels[party].sent
        channels[party].close()

    threads = [threading.Thread(target=work, args=(party,)) for party in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return run


class StraightforwardReceiver:
    """Extension with one bit in a byte."""

    def __init__(self, base: KeyPairs) -> None:
        self._zero, self._one, self._hash = _streams(base.zero), _streams(base.one), _hash(base.session)

    def batch(self, first: int, choices: Bits) -> tuple[Bytes, Words]:
        """The matrix u, a bit in a byte, and the chosen keys."""
        zero, one = (_columns(streams, len(choices)) for streams in (self._zero, self._one))
        return zero ^ one ^ choices.view(np.uint8), self._hash(zero, first)


class StraightforwardSender:
    """The other end."""

    def __init__(self, base: ChosenKeys) -> None:
        self._streams, self._hash = _streams(base.keys), _hash(base.session)
        self._chosen = base.choices.view(np.uint8)[:, None]

    def batch(self, first: int, u: Bytes) -> tuple[Words, Words]:
        """Both keys of every transfer."""
        columns = _columns(self._streams, u.shape[1]) ^ u * self._chosen
        return self._hash(columns, first), self._hash(columns ^ self._chosen, first)


def _streams(keys: list[bytes]) -> list[CipherContext]:
    return [Cipher(algorithms.AES128(key), modes.CTR(bytes(16))).encryptor() for key in keys]


def _columns(streams: list[CipherContext], count: int) -> Bytes:
    size = 16 * (-(-count // 128) + 1)  # 128 rows more: the matrix that is checked has them
    drawn = (np.frombuffer(stream.update(bytes(size)), np.uint8) for stream in streams)
    return np.stack([np.unpackbits(column, count=count, bitorder="little") for column in drawn])


def _hash(session: bytes) -> Callable[[Bytes, int], Words]:
    encrypt = Cipher(algorithms.AES128(derive(session, "ot", "rows")[:16]), modes.ECB()).encryptor().update

    def keys(columns: Bytes, first: int) -> Words:
        rows = np.packbits(columns.T, axis=1, bitorder="little")
        inner = np.frombuffer(encrypt(rows.tobytes()), np.uint64).reshape(-1, 2)
        tweaks = np.stack([np.arange(first, first + len(rows)), np.zeros(len(rows), np.intp)], axis=1).astype(np.uint64)
        return np.frombuffer(encrypt((inner ^ tweaks).tobytes()), np.uint64).reshape(-1, 2) ^ inner

    return keys


def straightforward(chosen: ChosenKeys, pairs: KeyPairs, choices: Bits) -> tuple[list[Words], list[float]]:
    """Keys k0, k1 and the chosen ones, and the seconds of sender and receiver."""
    sender, receiver, seconds = StraightforwardSender(chosen), StraightforwardReceiver(pairs), [0.0, 0.0]
    batches = []
    for first in range(0, len(choices), BATCH):
        began = time.thread_time()
        u, key = receiver.batch(first, choices[first : first + BATCH])
        between = time.thread_time()
        batches.append((*sender.batch(first, u), key))
        seconds = [seconds[0] + time.thread_time() - between, seconds[1] + between - began]
    return [np.concatenate(part) for part in zip(*batches, strict=True)], seconds


def measure(count: int, gates: int, neurons: int, repeats: int) -> dict[str, float]:
    """All figures, the best of a few times; what is made is checked."""
    base = both(lambda channel: receive_base(channel, STEP), lambda channel: send_base(channel, STEP), repeats)
    chosen, pairs = base.results
    choices = coins(fresh_seed(), count)
    random = both(
        lambda channel: OtSender(channel, STEP, chosen).random(count),
        lambda channel: OtReceiver(channel, STEP, pairs).random(choices),
        repeats,
    )
    (zero, one), key = random.results
    assert np.array_equal(key, np.where(choices[:, None], one, zero))
    assert random.sent == [DONE_BYTES, extension_bytes(count)]
    plain, plain_seconds = straightforward(chosen, pairs, choices)
    assert all(map(np.array_equal, (zero, one, key), plain))

    bits = both(
        lambda channel: OtSender(channel, STEP, chosen).bits(count),
        lambda channel: OtReceiver(channel, STEP, pairs).bits(choices),
        repeats,
    )
    (zeros, ones), few = bits.results
    assert np.array_equal(few, zeros ^ (np.packbits(choices, bitorder="little") & (zeros ^ ones)))

    index, values = np.arange(neurons) % gates, mask(fresh_seed(), (neurons,)).numpy().view(np.uint64)
    correlated = both(
        lambda channel: OtSender(channel, STEP, chosen).correlated(gates, index, values),
        lambda channel: OtReceiver(channel, STEP, pairs).correlated(choices[:gates], index),
        repeats,
    )
    assert np.array_equal(sum(correlated.results), values * choices[:gates][index])

    figures: dict[str, float] = {"base_bytes": sum(base.sent), "bytes": sum(random.sent)}
    figures |= {"bytes_a_transfer": sum(random.sent) / count, "correlated_bytes": sum(correlated.sent)}
    for party, name in enumerate(("sender", "receiver")):
        figures |= {
            f"{name}_base_seconds": base.seconds[party],
            f"{name}_random_seconds": random.seconds[party],
            f"{name}_bits_seconds": bits.seconds[party],
            f"{name}_correlated_seconds": correlated.seconds[party],
            f"{name}_straightforward_seconds": plain_seconds[party],
            f"{name}_times_as_fast": plain_seconds[party] / random.seconds[party],
        }
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000, help="transfers")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="a fiftieth of everything, once: to see that it works")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    share = 50 if options.tiny else 1
    if options.tiny:
        options.repeats = 1
    figures = measure(options.count // share, min(GATES, options.count) // share, NEURONS // share, options.repeats)
    if options.json:
        print(json.dumps({"count": options.count // share} | figures))
        return
    print(f"{options.count // share:,} random oblivious transfers from {KAPPA} base transfers")
    for name, value in figures.items():
        print(f"{name:32} {value:14,.{0 if name.endswith('bytes') else 3}f}")


if __name__ == "__main__":
    main()
