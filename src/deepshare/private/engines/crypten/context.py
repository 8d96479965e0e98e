"""State of one process that its operations share: secrets, openings, gates and counters."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from deepshare.private.engines.crypten import comparison
from deepshare.private.engines.crypten.comparison import Comparator, Signs
from deepshare.private.engines.crypten.fixed import BITS, encode
from deepshare.private.engines.crypten.link import GlooLink
from deepshare.private.engines.crypten.triples import Mask, TripleProvider


@dataclass(eq=False)
class Secret:
    """The server's numbers that are factors of products.

    Attributes:
        share: This party's share.
        mask: Their mask, the same for all images.
        opened: The numbers less their mask, opened once.
    """

    share: Tensor
    mask: Mask
    opened: Tensor


@dataclass(eq=False)
class MaskedValue:
    """A result that is a factor of products: its mask, and once it is opened the value less its mask."""

    mask: Mask
    opened: Tensor | None = None


@dataclass(eq=False)
class MaskedGates:
    """The gates of a group: flip + (1 - 2 flip) bit, with a flip that both parties see and a bit that nobody knows.

    Attributes:
        signs: Correlated randomness of the comparisons.
        bit: The random bits in the shape of the gates.
        flip: The gates hidden by the bits; opened by the comparison, once.
    """

    signs: Signs
    bit: Mask
    flip: Tensor | None = None

    def seen(self) -> Tensor:
        """The flip, after the comparison."""
        if self.flip is None:
            raise RuntimeError("gates were used before they were computed")
        return self.flip


@dataclass(eq=False)
class Context:
    """The state of one process; a dealer has neither shares nor a comparator.

    Attributes:
        triples: Provider of all masks.
        link: The connection.
        images: Number of images.
        comparator: None for a dealer.
        values: Openings, by the number of the operation whose result is opened.
        gates: By the number of the leader.
        secrets: All of them, in order.
        products: Number of products made at activations.
    """

    triples: TripleProvider
    link: GlooLink
    images: int
    comparator: Comparator | None
    values: dict[int, MaskedValue] = field(default_factory=dict)
    gates: dict[int, MaskedGates] = field(default_factory=dict)
    secrets: list[Secret] = field(default_factory=list)
    products: int = 0

    def secret(self, values: Tensor, bits: int = BITS) -> Secret:
        """Share the server's factors and choose their mask; `open_secrets` completes them."""
        mask = self.triples.fresh(values.shape)
        secret = Secret(self.shared(values, bits), mask, torch.empty(0))
        self.secrets.append(secret)
        return secret

    def shared(self, values: Tensor, bits: int, owner: int = 0) -> Tensor:
        """Share numbers that one party has, the server unless said otherwise, at a scale of 2^bits."""
        if self.comparator is None:
            return values.to("meta")
        return self.comparator.share(values.shape, encode(values, bits) if self.link.rank == owner else None)

    def open_secrets(self) -> None:
        """Open all the server's masked factors in one round."""
        opened = self.link.open([secret.share - secret.mask.share for secret in self.secrets])
        for secret, masked in zip(self.secrets, opened, strict=True):
            secret.opened = masked

    def masked_value(self, number: int, size: Sequence[int]) -> MaskedValue:
        """The opening of a result, with a mask of its own; the same for all who read it."""
        if number not in self.values:
            self.values[number] = MaskedValue(self.triples.fresh((self.images, *size)))
        return self.values[number]

    def open_values(self, numbers: Sequence[int], results: Sequence[Tensor]) -> list[Tensor]:
        """Results less their masks; those that have not been opened are, in one round."""
        fresh = {n: x for n, x in zip(numbers, results, strict=True) if self.values[n].opened is None}
        if fresh:
            opened = self.link.open([x - self.values[number].mask.share for number, x in fresh.items()])
            for number, less_mask in zip(fresh, opened, strict=True):
                self.values[number].opened = less_mask
        return [value for number in numbers if (value := self.values[number].opened) is not None]

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop the openings of results that nobody reads any more."""
        for number in numbers:
            self.values.pop(number, None)

    def deal_gates(self, size: Sequence[int]) -> MaskedGates:
        """Correlated randomness for gates of some size."""
        signs = comparison.deal(self.triples, prod(size))
        return MaskedGates(signs, signs.bit.map(lambda bit: bit.view(tuple(size))))

    def compare(self, gates: MaskedGates, x: Tensor, others: Sequence[Tensor]) -> list[Tensor]:
        """Compute the gates (x >= 0), and open other shares in the same round."""
        if self.comparator is None:
            raise RuntimeError("a dealer compares nothing")
        hidden = self.comparator.hidden_signs(x.flatten(), gates.signs).view(x.shape)
        sign, *theirs = self.link.exchange([hidden, *others])
        gates.flip = 1 - (hidden ^ sign)
        return [mine + other for mine, other in zip(others, theirs, strict=True)]
