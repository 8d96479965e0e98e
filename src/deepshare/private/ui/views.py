"""Views of the parties of one inference, in a form that a page can show."""

import base64
import io
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from deepshare.data.images import About
from deepshare.private.cost import Result

SHOWN_CLASSES = 5


@dataclass
class Frame:
    """A frame of payload.

    Attributes:
        sent: Whether the client sent it; else it came from the server.
        layer: The layer that it belongs to.
        size: Its bytes.
        seconds: When, since the inference began.
    """

    sent: bool
    layer: str
    size: int
    seconds: float


@dataclass
class PartyViews:
    """Watches the frames of one inference on the client's connection.

    Attributes:
        frames: In the order of their time.
        share: The first frame that was sent: the server's share of the picture, all that it ever gets of it.
    """

    frames: list[Frame] = field(default_factory=list)
    share: bytes = b""
    _begin: float = field(default_factory=time.perf_counter)

    def __call__(self, sent: bool, layer: str, payload: bytes) -> None:
        """Take a frame down."""
        if sent and layer == (self.frames[0].layer if self.frames else layer):  # the first, or the inference anew
            self.frames.clear()
            self.share, self._begin = payload, time.perf_counter()
        self.frames.append(Frame(sent, layer, len(payload), time.perf_counter() - self._begin))

    def account(self, about: About, picture: Tensor, result: Result) -> dict[str, Any]:
        """All that the page shows of an inference.

        Args:
            about: Description of the images.
            picture: (1, C, H, W), normalised.
            result: The logits, and their cost.
        """
        cost = result.cost
        return {
            "classes": _likeliest(about, result),
            "seconds": cost.seconds,
            "client_bytes": cost.online.client_bytes,
            "server_bytes": cost.online.server_bytes,
            "before_bytes": cost.offline.client_bytes,
            "dealer_bytes": cost.offline.dealer_bytes,
            "comparisons": cost.online.comparisons,
            "rounds": cost.online.rounds,
            "picture": png(_pixels(about, picture)),
            "share": png(self._noise(about)),
            "words": [f"{word:016x}" for word in np.frombuffer(self.share, np.uint64)[:3].tolist()],
            "layers": self._layers(),
        }

    def _noise(self, about: About) -> NDArray[np.uint8]:
        """The server's share as a picture: of every number the highest eight bits."""
        words = np.frombuffer(self.share, np.uint64).reshape(about.size)
        return (words >> np.uint64(56)).astype(np.uint8)

    def _layers(self) -> list[dict[str, Any]]:
        """By layer, in order: bytes of either party, and when its first and last frame passed."""
        rows: dict[str, dict[str, Any]] = {}
        for frame in self.frames:
            row = rows.setdefault(
                frame.layer, {"name": frame.layer, "client": 0, "server": 0, "begin": frame.seconds, "end": 0.0}
            )
            row["client" if frame.sent else "server"] += frame.size
            row["end"] = frame.seconds
        return list(rows.values())


def _likeliest(about: About, result: Result) -> list[dict[str, Any]]:
    """The likeliest classes; without probabilities where the server gives no scores."""
    if result.hides_scores:
        return [{"name": about.classes[index], "probability": None} for index in result.classes[0].tolist()]
    likely = result.logits[0].double().softmax(0).topk(min(SHOWN_CLASSES, len(about.classes)))
    return [
        {"name": about.classes[index], "probability": probability}
        for index, probability in zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
    ]


def png(pixels: NDArray[np.uint8]) -> str:
    """Pixels (C, H, W) as a PNG in a data URL."""
    plain = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
    file = io.BytesIO()
    Image.fromarray(plain).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _pixels(about: About, picture: Tensor) -> NDArray[np.uint8]:
    """The pixels of a normalised picture."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (about.mean, about.std))
    return ((picture[0] * std + mean) * 255).round().clamp(0, 255).byte().numpy()
