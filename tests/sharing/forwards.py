"""Forwards as people write them, beside ReLU functions; pytest rewrites assertions in tests, not here."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Base(nn.Module):
    """Two layers, between and after which subclasses do what they do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 5)

    def scores(self, x: Tensor) -> Tensor:
        """Scores of a map."""
        scores: Tensor = self.fc(x.mean((2, 3)))
        return scores


class Constants(Base):
    """Tensors that are made anew in each forward."""

    def forward(self, x: Tensor) -> Tensor:
        mean, deviation = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.25, 0.3])
        x = (x - mean.view(1, 3, 1, 1)) / deviation.view(1, 3, 1, 1)
        return self.scores(F.relu(self.conv(x)) * torch.ones(1, 8, 1, 1))


class Buffers(Base):
    """A frozen BatchNorm: numbers that are computed of buffers alone."""

    mean: Tensor
    var: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        scale = (self.var + 1e-5).rsqrt()
        return self.scores(F.relu((self.conv(x) - self.mean.view(1, -1, 1, 1)) * scale.view(1, -1, 1, 1)))


class Dropped(Base):
    """Dropout as a function, by position and by name."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.conv(x)), training=self.training)
        return self.scores(F.dropout2d(x, 0.5, self.training))


class Flagged(Base):
    """Arguments with defaults, and any others."""

    def forward(self, x: Tensor, features: bool = False, times: int = 2, how: str = "", **others: Tensor) -> Tensor:
        for _ in range(times):
            x = F.relu(self.conv(x))[:, :3]
        if features:
            return x
        x = F.pad(x, (0, 0, 0, 0, 0, 5))
        return self.scores(x) if not how else x


class Asserts(Base):
    """Assertions about the arguments and about other tensors."""

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 3
        x = F.relu(self.conv(x))
        assert x.shape[2] == x.shape[3], "not a square"
        return self.scores(x)


class FusedWeights(Base):
    """A ReLU of a parameter, as in BiFPN, before one of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor([0.5, -1.0]))

    def forward(self, x: Tensor) -> Tensor:
        weights = F.relu(self.weights)
        weights = weights / (weights.sum() + 1e-4)
        x = F.relu(self.conv(x))
        return self.scores(x * weights[0] + x * weights[1])


class Attribute(Base):
    """An activation that is handed over."""

    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.acts = {"first": act}
        self.act = act
        self.second = nn.Conv2d(8, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.act(self.second(self.acts["first"](self.conv(x)))))


ATTRIBUTES: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "leaky_relu": partial(F.leaky_relu, negative_slope=0.1),
    "lambda": lambda x: x * torch.sigmoid(x),
}
FORWARDS = (Constants, Buffers, Dropped, Flagged, Asserts, FusedWeights)
