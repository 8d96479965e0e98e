"""What the operations of one party share: secrets, openings, gates and counters."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from deepshare.private.engines.crypten.comparison import Comparator, Signs
from deepshare.private.engines.crypten.fixed import BITS, encode
from deepshare.private.engines.crypten.link import Link
from deepshare.private.engines.crypten.triples import Mask, Source


@dataclass(eq=False)
class Secret:
    """Numbers of the server that are factors of products.

    Attributes:
        share: This party's share.
        mask: What hides them, the same for all images.
        offset: The numbers less their mask, opened once.
    """

    share: Tensor
    mask: Mask
    offset: Tensor


@dataclass(eq=False)
class Opening:
    """A value that products are made of: its mask, and once it is opened the value less its mask."""

    mask: Mask
    offset: Tensor | None = None


@dataclass(eq=False)
class Gates:
    """The gates of a group: flip + (1 - 2 flip) bit, with a flip that both parties see and a bit that nobody knows.

    Attributes:
        signs: What is prepared for the comparisons.
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
class Room:
    """The state of one process; a dealer has neither shares nor a comparator.

    Attributes:
        source: Where masks come from.
        link: The connection.
        images: How many images there are.
        comparator: None for a dealer.
        openings: By the number of the operation whose result is opened.
        gates: By the number of the leader.
        secrets: All of them, in order.
        products: How many were made at activations.
    """

    source: Source
    link: Link
    images: int
    comparator: Comparator | None
    openings: dict[int, Opening] = field(default_factory=dict)
    gates: dict[int, Gates] = field(default_factory=dict)
    secrets: list[Secret] = field(default_factory=list)
    products: int = 0

    def secret(self, values: Tensor, bits: int = BITS) -> Secret:
        """Share the server's factors and choose their mask; `open_secrets` completes them."""
        mask = self.source.fresh(values.shape)
        secret = Secret(self.shared(values, bits), mask, torch.empty(0))
        self.secrets.append(secret)
        return secret

    def shared(self, values: Tensor, bits: int, owner: int = 0) -> Tensor:
        """Share numbers that one party has, the server unless said otherwise, at a scale of 2^bits."""
        if self.comparator is None:
            return values.to("meta")
        return self.comparator.share(values.shape, encode(values, bits) if self.link.rank == owner else None)

    def hidden_signs(self, x: Tensor, signs: Signs) -> Tensor:
        """A party's comparison; see `Comparator`."""
        if self.comparator is None:
            raise RuntimeError("a dealer compares nothing")
        return self.comparator.hidden_signs(x.flatten(), signs)

    def open_secrets(self) -> None:
        """Open all the server's masked factors in one round."""
        offsets = self.link.open([secret.share - secret.mask.share for secret in self.secrets])
        for secret, offset in zip(self.secrets, offsets, strict=True):
            secret.offset = offset

    def opening(self, number: int, size: Sequence[int]) -> Opening:
        """The opening of a value, with a mask of its own; the same for all who read it."""
        if number not in self.openings:
            self.openings[number] = Opening(self.source.fresh((self.images, *size)))
        return self.openings[number]

    def open_value(self, number: int, x: Tensor) -> Tensor:
        """A value less its mask, opened unless it has been."""
        opening = self.openings[number]
        if opening.offset is None:
            (opening.offset,) = self.link.open([x - opening.mask.share])
        return opening.offset

    def forget(self, numbers: Iterable[int]) -> None:
        """Throw away the openings of values that nobody reads any more."""
        for number in numbers:
            self.openings.pop(number, None)
