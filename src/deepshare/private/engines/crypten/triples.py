"""Providers of correlated randomness.

All processes ask for the same masks in the same order, the dealer too, so that nobody has to tell it what is needed.
The client draws all its shares from a seed. For each mask that depends on others the server gets a correction, the rest
of its value: these are the bytes that a dealer sends, or that a first party would send if it were someone else.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from deepshare.private.engines.crypten.link import GlooLink


class Mask:
    """Random numbers, or a function of such; each process knows a part of it.

    Args:
        share: This party's share; None in the dealer.
        value: The numbers; None in a process that must not know them.
    """

    def __init__(self, share: Tensor | None, value: Tensor | None) -> None:
        self._share, self._value = share, value

    @property
    def share(self) -> Tensor:
        """This party's share."""
        return _known(self._share)

    @property
    def value(self) -> Tensor:
        """The numbers."""
        return _known(self._value)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Mask":
        """The same numbers in another shape or order."""
        share, value = (None if part is None else function(part) for part in (self._share, self._value))
        return Mask(share, value)


class TripleProvider(ABC):
    """Provides masks. Shares add up, or give the value by exclusive or.

    Attributes:
        dealt: Bytes sent to the server, or that would be.
    """

    dealt = 0

    @abstractmethod
    def fresh(self, size: Sequence[int], xor: bool = False, bits: int = 64) -> Mask:
        """Uniform numbers of `bits` bits."""

    @abstractmethod
    def derived(self, size: Sequence[int], function: Callable[[], Tensor], xor: bool = False) -> Mask:
        """Shares of a function of other masks' values, which is called where they are known."""


class TrustedFirstParty(TripleProvider):
    """The server where it is trusted: it knows all values, and the client's seed."""

    def __init__(self, own: int, client: int) -> None:
        self._own, self._client = _generator(own), _generator(client)

    def fresh(self, size: Sequence[int], xor: bool = False, bits: int = 64) -> Mask:
        """Its own choice."""
        return self._split(_draw(self._own, size, bits), xor, bits)

    def derived(self, size: Sequence[int], function: Callable[[], Tensor], xor: bool = False) -> Mask:
        """Counted as if it were sent."""
        value = function()
        self.dealt += value.nbytes
        return self._split(value, xor)

    def _split(self, value: Tensor, xor: bool, bits: int = 64) -> Mask:
        theirs = _draw(self._client, value.shape, bits)
        return Mask(value ^ theirs if xor else value - theirs, value)


class SeededShares(TripleProvider):
    """The client: its shares come from its seed, whoever deals."""

    def __init__(self, seed: int) -> None:
        self._generator = _generator(seed)

    def fresh(self, size: Sequence[int], xor: bool = False, bits: int = 64) -> Mask:
        """Its share is drawn."""
        return Mask(_draw(self._generator, size, bits), None)

    def derived(self, size: Sequence[int], function: Callable[[], Tensor], xor: bool = False) -> Mask:
        """Drawn as well."""
        return Mask(_draw(self._generator, size), None)


class CorrectedShares(SeededShares):
    """The server where a third party deals."""

    def __init__(self, seed: int, link: GlooLink) -> None:
        super().__init__(seed)
        self._link = link

    def derived(self, size: Sequence[int], function: Callable[[], Tensor], xor: bool = False) -> Mask:
        """From the dealer."""
        return Mask(self._link.receive(size, "dealer"), None)


class TrustedThirdParty(TripleProvider):
    """The third party: it knows both seeds, and so all values."""

    def __init__(self, server: int, client: int, link: GlooLink) -> None:
        self._server, self._client, self._link = _generator(server), _generator(client), link

    def fresh(self, size: Sequence[int], xor: bool = False, bits: int = 64) -> Mask:
        """The draws of both, combined."""
        first, second = _draw(self._server, size, bits), _draw(self._client, size, bits)
        value = first ^ second if xor else first + second
        return Mask(None, value)

    def derived(self, size: Sequence[int], function: Callable[[], Tensor], xor: bool = False) -> Mask:
        """The server is sent the rest beside the share that the client draws."""
        value, theirs = function(), _draw(self._client, size)
        self._link.send(value ^ theirs if xor else value - theirs, "server")
        self.dealt += value.nbytes
        return Mask(None, value)


def _known(part: Tensor | None) -> Tensor:
    if part is None:
        raise RuntimeError("this process does not know that part of a mask")
    return part


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _draw(generator: torch.Generator, size: Sequence[int], bits: int = 64) -> Tensor:
    lowest, beyond = (0, 2**bits) if bits < 64 else (-(2**63), None)
    return torch.empty(tuple(size), dtype=torch.long).random_(lowest, beyond, generator=generator)
