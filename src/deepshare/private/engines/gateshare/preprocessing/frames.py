"""Frames of preprocessing: lots, masked weights and client openings on a channel."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from deepshare.private.engines.gateshare.crypto.prg import SEED_BYTES
from deepshare.private.engines.gateshare.lot import ID_BYTES, Lot, Party, Piece
from deepshare.private.engines.gateshare.protocols.schedule import Schedule
from deepshare.private.engines.gateshare.transport.channel import Channel

_START = 0


def send_lot(channel: Channel, schedule: Schedule, lot: Lot, party: Party) -> None:
    """Send a party its half of a lot."""
    channel.send(_START, lot.id, lot.seed)
    for piece in schedule.dealt_bytes(lot.images, party):
        channel.send(piece[0], lot.pieces[piece])


def receive_lot(channel: Channel, schedule: Schedule, images: int, party: Party) -> Lot:
    """Receive one's half of a lot."""
    start = channel.receive(_START, ID_BYTES + SEED_BYTES).tobytes()
    wanted = schedule.dealt_bytes(images, party)
    pieces = {piece: channel.receive(piece[0], size) for piece, size in wanted.items()}
    return Lot(start[:ID_BYTES], start[ID_BYTES:], images, pieces)


def receive_masked_weights(channel: Channel, schedule: Schedule) -> dict[int, list[Tensor]]:
    """Receive all masked weights, by step number."""
    received = {}
    for number, shapes in schedule.masked_weight_shapes().items():
        numbers = channel.receive_numbers(number, (sum(map(_count, shapes)),))
        received[number] = _split(numbers, shapes)
    return received


def dump_masked_weights(masked_weights: Mapping[int, Sequence[Tensor]]) -> bytes:
    """Masked weights as bytes, to be kept."""
    return b"".join(tensor.numpy().tobytes() for step in masked_weights.values() for tensor in step)


def parse_masked_weights(data: bytearray, schedule: Schedule) -> dict[int, list[Tensor]]:
    """Read what `dump_masked_weights` wrote."""
    shapes = schedule.masked_weight_shapes()
    parts = iter(
        _split(torch.frombuffer(data, dtype=torch.int64), [shape for step in shapes.values() for shape in step])
    )
    return {number: [next(parts) for _ in step] for number, step in shapes.items()}


def send_client_openings(channel: Channel, schedule: Schedule, openings: Mapping[Piece, Tensor]) -> None:
    """Send what the server needs before the images, as one frame."""
    channel.send(_START, *(openings[piece] for piece in schedule.client_openings()))


def receive_client_openings(channel: Channel, schedule: Schedule, images: int) -> dict[Piece, Tensor]:
    """Receive what the client sends before the images."""
    shapes = {piece: (images, *shape) for piece, shape in schedule.client_openings().items()}
    numbers = channel.receive_numbers(_START, (sum(map(_count, shapes.values())),))
    return dict(zip(shapes, _split(numbers, list(shapes.values())), strict=True))


def _split(numbers: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    parts = torch.split(numbers, [_count(shape) for shape in shapes])
    return [part.view(*shape) for part, shape in zip(parts, shapes, strict=True)]


def _count(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))
