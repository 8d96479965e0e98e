"""Lots: correlated randomness for one or more images, dealt before them, expanded by each party and used once.

Most of a lot is expanded from a seed of 32 bytes. The dealer sends only what has to fit the other party's masks: the
corrections go to the server, whose link to the dealer is the better one, and comparison keys to both.
"""

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from deepshare.private.engines.gateshare.crypto.dcf import Bits, Bytes
from deepshare.private.engines.gateshare.crypto.ring import coins, derive, expand, mask

ID_BYTES = 16

Holder = Literal["server", "client"]
Piece = tuple[int, str]
"""A tensor of a lot by the step that uses it and by its name. Names label masks too: they are part of the format."""


@dataclass(frozen=True, eq=False)
class Lot:
    """One party's half of a lot.

    Attributes:
        id: The same for both halves.
        seed: This party's; the dealer knows it too.
        images: How many images it serves.
        pieces: Everything that is not expanded.
    """

    id: bytes
    seed: bytes
    images: int
    pieces: MutableMapping[Piece, Bytes] = field(default_factory=dict)

    def mask(self, name: str, number: int, shape: Sequence[int]) -> Tensor:
        """Expand ring elements for every image."""
        return mask(self.seed, (self.images, *shape), name, number)

    def coins(self, name: str, number: int, count: int) -> Bits:
        """Expand random bits, `count` for every image."""
        return coins(self.seed, self.images * count, name, number)

    def expand(self, name: str, number: int, count: int) -> Bytes:
        """Expand random bytes, `count` for every image."""
        return expand(self.seed, self.images * count, name, number)

    def public_key(self, name: str, number: int) -> bytes:
        """Derive 16 bytes that both parties know."""
        return derive(self.id, name, number)[:16]

    def public_mask(self, name: str, number: int, shape: Sequence[int]) -> Tensor:
        """Expand ring elements for every image that both parties know."""
        return mask(derive(self.id, name, number), (self.images, *shape), name, number)

    def correction(self, name: str, number: int, shape: Sequence[int]) -> Tensor:
        """Ring elements for every image, as the dealer sent them."""
        return torch.from_numpy(self.pieces[number, name].view(np.int64)).view(self.images, *shape)

    def share(self, name: str, number: int, shape: Sequence[int]) -> Tensor:
        """Ring elements that fit the other party's: as they were sent or made, else expanded."""
        return (self.correction if (number, name) in self.pieces else self.mask)(name, number, shape)

    def put(self, name: str, number: int, values: Tensor) -> None:
        """Store a correction, or another share."""
        self.pieces[number, name] = values.contiguous().numpy().reshape(-1).view(np.uint8)


@dataclass(frozen=True, eq=False)
class LotBatch:
    """Images of several lots as one batch, in order.

    Attributes:
        parts: The lots, and which of their images are used.
    """

    parts: Sequence[tuple[Lot, Sequence[int]]]

    @property
    def images(self) -> int:
        """Number of images that are used."""
        return sum(len(rows) for _, rows in self.parts)

    def mask(self, name: str, number: int, shape: Sequence[int]) -> Tensor:
        """See `Lot.mask`."""
        masks: Tensor = _concat([_select(lot.mask(name, number, shape), rows) for lot, rows in self.parts])
        return masks

    def share(self, name: str, number: int, shape: Sequence[int]) -> Tensor:
        """See `Lot.share`."""
        shares: Tensor = _concat([_select(lot.share(name, number, shape), rows) for lot, rows in self.parts])
        return shares

    def has(self, name: str, number: int) -> bool:
        """Return True if there are such shares."""
        return (number, name) in self.parts[0][0].pieces

    def coins(self, name: str, number: int, count: int) -> Bits:
        """See `Lot.coins`; for lots of which all images are used."""
        return np.concatenate([lot.coins(name, number, count) for lot, _ in self.parts])

    def put(self, name: str, number: int, values: Tensor) -> None:
        """Store shares of all images, one row each; see `Lot.put`."""
        for (lot, _), part in zip(self.parts, values.split([lot.images for lot, _ in self.parts]), strict=True):
            lot.put(name, number, part)

    def put_bits(self, name: str, number: int, bits: Bits) -> None:
        """Store bits of all images, as many for each; those of a lot are packed together."""
        rows = bits.reshape(self.images, -1)
        for (lot, _), part in zip(self.parts, np.split(rows, self._ends()), strict=True):
            lot.pieces[number, name] = np.packbits(part, bitorder="little")

    def _ends(self) -> list[int]:
        return [int(end) for end in np.cumsum([lot.images for lot, _ in self.parts])[:-1]]

    def public_mask(self, name: str, number: int, shape: Sequence[int]) -> Tensor:
        """See `Lot.public_mask`."""
        masks: Tensor = _concat([_select(lot.public_mask(name, number, shape), rows) for lot, rows in self.parts])
        return masks


@dataclass(frozen=True, eq=False)
class Batch:
    """Base of what a party holds for some images: tensors with one row an image, batches, dicts of them, or numbers.

    Example:
        >>> @dataclass(frozen=True, eq=False)
        ... class Pair(Batch):
        ...     x: Tensor
        ...     y: Tensor
        >>> pair = Pair(torch.arange(3), torch.arange(3, 6))
        >>> Pair.concat([pair, pair.select([0, 2])]).y
        tensor([3, 4, 5, 3, 5])
    """

    def select(self, rows: Sequence[int]) -> Self:
        """Keep some of the images."""
        return type(self)(**{name: _select(value, rows) for name, value in vars(self).items()})

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Put images of several lots into one batch."""
        return cls(**{name: _concat([getattr(part, name) for part in parts]) for name in vars(parts[0])})


def _select(value: Any, rows: Sequence[int]) -> Any:
    if isinstance(value, Tensor):
        return value if len(rows) == len(value) else value[torch.tensor(rows)]
    if isinstance(value, dict):
        return {key: _select(one, rows) for key, one in value.items()}
    return value if value is None or isinstance(value, int) else value.select(rows)


def _concat(values: list[Any]) -> Any:
    first = values[0]
    if len(values) == 1 or first is None or isinstance(first, int):
        return first
    if isinstance(first, Tensor):
        return torch.cat(values)
    if isinstance(first, dict):
        return {key: _concat([value[key] for value in values]) for key in first}
    return type(first).concat(values)
