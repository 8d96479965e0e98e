"""Lots, masked weights and what goes ahead, as frames."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from deepshare.private.engines.gateshare.crypto.prg import SEED_BYTES
from deepshare.private.engines.gateshare.preprocessing.lot import ID_BYTES, Lot, Party, Piece, ahead_shapes, sizes
from deepshare.private.engines.gateshare.schedule import Schedule
from deepshare.private.engines.gateshare.transport.channel import Channel
from deepshare.private.engines.gateshare.weights import session_shapes

_START = 0


def send_lot(channel: Channel, schedule: Schedule, lot: Lot, party: Party) -> None:
    """Send a party its half of a lot."""
    channel.send(_START, lot.id, lot.seed)
    for piece in sizes(schedule, lot.images, party):
        channel.send(piece[0], lot.pieces[piece])


def receive_lot(channel: Channel, schedule: Schedule, images: int, party: Party) -> Lot:
    """Get one's half of a lot."""
    start = channel.receive(_START, ID_BYTES + SEED_BYTES).tobytes()
    wanted = sizes(schedule, images, party)
    pieces = {piece: channel.receive(piece[0], size) for piece, size in wanted.items()}
    return Lot(start[:ID_BYTES], start[ID_BYTES:], images, pieces)


def receive_offsets(channel: Channel, schedule: Schedule) -> dict[int, list[Tensor]]:
    """Get all masked weights."""
    offsets = {}
    for number, shapes in session_shapes(schedule).items():
        numbers = channel.receive_numbers(number, (sum(map(_count, shapes)),))
        offsets[number] = _split(numbers, shapes)
    return offsets


def dump_offsets(offsets: Mapping[int, Sequence[Tensor]]) -> bytes:
    """Masked weights as bytes, to be kept."""
    return b"".join(offset.numpy().tobytes() for step in offsets.values() for offset in step)


def parse_offsets(data: bytearray, schedule: Schedule) -> dict[int, list[Tensor]]:
    """Read what `dump_offsets` wrote."""
    shapes = session_shapes(schedule)
    parts = iter(
        _split(torch.frombuffer(data, dtype=torch.int64), [shape for step in shapes.values() for shape in step])
    )
    return {number: [next(parts) for _ in step] for number, step in shapes.items()}


def send_ahead(channel: Channel, schedule: Schedule, ahead: Mapping[Piece, Tensor]) -> None:
    """Send what the server needs before the images, as one frame."""
    channel.send(_START, *(ahead[piece] for piece in ahead_shapes(schedule)))


def receive_ahead(channel: Channel, schedule: Schedule, images: int) -> dict[Piece, Tensor]:
    """Get it."""
    shapes = {piece: (images, *shape) for piece, shape in ahead_shapes(schedule).items()}
    numbers = channel.receive_numbers(_START, (sum(map(_count, shapes.values())),))
    return dict(zip(shapes, _split(numbers, list(shapes.values())), strict=True))


def _split(numbers: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    parts = torch.split(numbers, [_count(shape) for shape in shapes])
    return [part.view(*shape) for part, shape in zip(parts, shapes, strict=True)]


def _count(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))
