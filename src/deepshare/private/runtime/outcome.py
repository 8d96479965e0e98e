"""Results of an inference: measurements of both parties, and the answer, which the client alone has."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.ir.program import Program

MOST_UNITS = 1 << 62
"""Bytes, counts or seconds in an account: more are no measurement."""


@dataclass(frozen=True)
class Part:
    """Time, bytes and counts of one layer or of several, measured by one party or by both.

    Attributes:
        seconds: Wall-clock time; of both parties the slower.
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

    @property
    def bytes(self) -> int:
        """Payload that all parties sent."""
        return self.server_bytes + self.client_bytes + self.dealer_bytes

    def __add__(self, other: "Part") -> "Part":
        """One after the other."""
        return Part(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def beside(self, other: "Part") -> "Part":
        """Merge both parties' measurements of the same work: bytes add up, of everything else the larger one counts."""
        sent = ("server_bytes", "client_bytes", "dealer_bytes")
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in vars(self)}
        return Part(**{name: sum(pair) if name in sent else max(pair) for name, pair in pairs.items()})


class AnswerError(EngineError):
    """Images or logits that a client must not accept; the server is not to learn of it."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """One party's result of a task.

    Attributes:
        logits: The client's, or its classes where the program gives these alone; None for everyone else.
        layers: By number of the operation, with the bytes that this party sent.
        offline: Work that can be done before the images are there.
        session: Work that is done once and serves all further images.
        seconds: From the images to the logits, without offline and session.
        wrong: Why the client has no logits, although all went as always: the server is not to learn it.
    """

    logits: Tensor | None
    layers: Mapping[int, Part]
    offline: Part = field(default_factory=Part)
    session: Part = field(default_factory=Part)
    seconds: float = 0.0
    wrong: str = ""

    def answer(self) -> Tensor:
        """The client's logits, or classes.

        Raises:
            AnswerError: They are refused, or the images were.
            EngineError: There are none.
        """
        if self.wrong:
            raise AnswerError(self.wrong)
        if self.logits is None:
            raise EngineError("the engine gave no logits")
        return self.logits


def account(outcome: Outcome) -> dict[str, Any]:
    """The message about an outcome for the other party: measurements, never the answer."""
    return {
        "layers": [[number, asdict(part)] for number, part in outcome.layers.items()],
        "offline": asdict(outcome.offline),
        "session": asdict(outcome.session),
        "seconds": outcome.seconds,
    }


def measured(message: dict[str, Any], program: Program) -> Outcome:
    """Read the other party's account.

    Raises:
        EngineError: It is damaged.
    """
    try:
        layers = {int(number): _part(part) for number, part in message["layers"]}
        if not all(0 <= number < len(program.operations) for number in layers):
            raise ValueError("no such layer")
        offline, session = _part(message["offline"]), _part(message["session"])
        return Outcome(None, layers, offline, session, _part({"seconds": message["seconds"]}).seconds)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise EngineError("the other party's account of its cost is damaged: install the same deepshare") from error


def _part(values: dict[str, Any]) -> Part:
    numbers: dict[str, Any] = {name: float(v) if name == "seconds" else int(v) for name, v in values.items()}
    if not all(0 <= value < MOST_UNITS for value in numbers.values()):
        raise ValueError("no such cost")
    return Part(**numbers)
