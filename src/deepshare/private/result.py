"""What a private inference gives back: logits and what they cost."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from deepshare.private.ir.program import ACTIVATIONS


@dataclass(frozen=True)
class Part:
    """What one party measured, or both together, in one layer or in all.

    Attributes:
        seconds: By the wall clock; of both parties the slower.
        server_bytes: Payload that the server sent.
        client_bytes: Payload that the client sent.
        dealer_bytes: Payload that a dealer sent to both, or a trusted first party would have to.
        rounds: Exchanges that wait for the other party.
        comparisons: Gates that were computed.
        products: Products of two hidden numbers at activations; those within linear layers are not counted.
    """

    seconds: float = 0.0
    server_bytes: int = 0
    client_bytes: int = 0
    dealer_bytes: int = 0
    rounds: int = 0
    comparisons: int = 0
    products: int = 0

    def __add__(self, other: "Part") -> "Part":
        """One after the other."""
        return Part(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def beside(self, other: "Part") -> "Part":
        """The other party's view of the same work: bytes add up, the rest was seen by both."""
        sent = ("server_bytes", "client_bytes", "dealer_bytes")
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in vars(self)}
        return Part(**{name: sum(pair) if name in sent else max(pair) for name, pair in pairs.items()})


@dataclass(frozen=True)
class Layer:
    """The online cost of one operation of the program."""

    name: str
    kind: str
    part: Part


@dataclass(frozen=True)
class Cost:
    """What an inference of some images cost.

    Attributes:
        engine: The engine.
        images: How many images went through at once.
        layers: The online cost of each operation, in order.
        offline: What can be done before the images are there: correlated randomness, and what it takes to hand it out.
        session: What is done once and serves all further images: weights that are handed over, compilation.
        seconds: From the images to the logits, by the wall clock, without offline and session.
        error: The largest difference of a logit from the plain network; None where nobody knows both.
    """

    engine: str
    images: int
    layers: tuple[Layer, ...]
    offline: Part = field(default_factory=Part)
    session: Part = field(default_factory=Part)
    seconds: float = 0.0
    error: float | None = None

    @property
    def online(self) -> Part:
        """All layers together."""
        return sum((layer.part for layer in self.layers), Part())

    @property
    def activations(self) -> Part:
        """The activations alone."""
        return sum((layer.part for layer in self.layers if layer.kind in ACTIVATIONS), Part())


@dataclass(frozen=True, eq=False)
class Result:
    """Logits (N, classes), or (N, classes, H, W), and their cost."""

    logits: Tensor
    cost: Cost


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one party has in the end.

    Attributes:
        logits: The client's; None for everyone else.
        layers: By number of the operation, with the bytes that this party sent.
        offline: See Cost.
        session: See Cost.
        seconds: See Cost.
    """

    logits: Tensor | None
    layers: Mapping[int, Part]
    offline: Part = field(default_factory=Part)
    session: Part = field(default_factory=Part)
    seconds: float = 0.0
