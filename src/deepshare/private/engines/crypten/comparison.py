"""CrypTen's comparison with zero, fed with dealt triples and with our connection."""

import os
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from deepshare.private.engines.crypten.link import GlooLink
from deepshare.private.engines.crypten.triples import Mask, TripleProvider
from deepshare.private.runtime.outcome import Part

# CrypTen's adder of 64 bits is one AND, then a tree of six levels. Each AND opens both its factors, and those of the
# tree have two words each.
LEVELS = 6
ADDER_WORDS = 2 + LEVELS * 4
ADDER_ROUNDS = 1 + LEVELS
# Dealt for a comparison: a word for each AND, and the random bit's share by addition.
DEALT_WORDS = 1 + LEVELS * 2 + 1


def comparison_cost(count: int, others: int) -> Part:
    """Bytes and rounds of some comparisons, whose last round opens other numbers as well."""
    sent = 8 * (ADDER_WORDS * count + count + others)
    return Part(server_bytes=sent, client_bytes=sent, rounds=ADDER_ROUNDS + 1, comparisons=count)


@dataclass(frozen=True, eq=False)
class Signs:
    """Correlated randomness for some comparisons.

    Attributes:
        triples: For the adder, in its order.
        hiding: A random bit for each comparison, shared by exclusive or.
        bit: The same bit, shared by addition.
    """

    triples: tuple[tuple[Mask, Mask, Mask], ...]
    hiding: Mask
    bit: Mask


def deal(provider: TripleProvider, count: int) -> Signs:
    """Correlated randomness for `count` comparisons."""
    triples = []
    for size in ((count,), *[(2, count)] * LEVELS):
        first, second = provider.fresh(size, xor=True), provider.fresh(size, xor=True)
        triples.append((first, second, provider.derived(size, partial(_and, first, second), xor=True)))
    hiding = provider.fresh((count,), xor=True, bits=1)
    return Signs(tuple(triples), hiding, provider.derived((count,), lambda: hiding.value))


def _and(first: Mask, second: Mask) -> Tensor:
    return first.value & second.value


def import_crypten() -> Any:
    """Import CrypTen, which expects a module of torch where it was before torch 2.9."""
    before, now = "torch.onnx._internal.registration", "torch.onnx._internal.torchscript_exporter.registration"
    if find_spec(now) is not None:
        sys.modules.setdefault(before, import_module(now))
    return import_module("crypten")


class Comparator:
    """CrypTen's circuit. There is one for each process, as CrypTen keeps its state in its modules.

    Attributes:
        comparisons: Number of comparisons made.
    """

    def __init__(self, link: GlooLink) -> None:
        self.comparisons = 0
        crypten = import_crypten()
        primitives = import_module("crypten.mpc.primitives")
        self._add = import_module("crypten.mpc.primitives.circuit").add
        self._binary: Any = primitives.BinarySharedTensor
        self._triples: deque[tuple[Mask, Mask, Mask]] = deque()
        self._zeros: Any = primitives.ArithmeticSharedTensor.PRZS
        import_module("crypten.communicator").get = lambda: link  # type: ignore[attr-defined]
        import_module("crypten.mpc").get_default_provider = lambda: self  # type: ignore[attr-defined]
        _seed(crypten.generators, link)

    def share(self, size: Sequence[int], mine: Tensor | None) -> Tensor:
        """This party's share of numbers that one of the parties has; the others give None."""
        zeros: Tensor = self._zeros(tuple(size)).share
        return zeros if mine is None else zeros + mine

    def hidden_signs(self, share: Tensor, signs: Signs) -> Tensor:
        """This party's share of (share < 0) xor the hiding bit, for a vector; to be opened by exclusive or."""
        self.comparisons += share.numel()
        self._triples.extend(signs.triples)
        total = self._add(self._binary(share, src=0), self._binary(share, src=1)).share
        hidden: Tensor = ((total >> 63) & 1) ^ signs.hiding.share
        return hidden

    def generate_binary_triple(self, size0: Any, size1: Any, device: Any = None) -> list[Any]:
        """CrypTen's interface of a provider: triples for one AND."""
        return [self._binary.from_shares(mask.share) for mask in self._triples.popleft()]


def _seed(generators: dict[str, dict[torch.device, torch.Generator]], link: GlooLink) -> None:
    """As CrypTen does it: each pair of neighbours has a seed, and with two parties there are two such pairs."""
    mine, local = (int.from_bytes(os.urandom(8), "big", signed=True) for _ in range(2))
    theirs = int(link.exchange([torch.tensor([mine])])[0])
    for name, seed in {"next": mine, "prev": theirs, "local": local, "global": mine ^ theirs}.items():
        generators[name][torch.device("cpu")] = torch.Generator().manual_seed(seed)
