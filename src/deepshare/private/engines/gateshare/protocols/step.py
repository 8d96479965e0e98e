"""Base of all steps: the interface through which parties, dealer, cost model and tests see a protocol.

A step is public and the same for everybody. A kind of step overrides what it needs; the defaults do nothing and cost
nothing. Every method gets the state of one phase (`Dealing`, `ClientOffline`, `ServerOffline`, `ClientOnline`,
`ServerOnline`, `InTheClear`), which the phase passes from step to step.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from deepshare.private.engines.gateshare.crypto.hinted import HintedEnd, HintedLayer
from deepshare.private.engines.gateshare.crypto.homomorphic import Encrypted
from deepshare.private.engines.gateshare.lot import Batch, Holder, Lot, LotBatch, Piece
from deepshare.private.engines.gateshare.protocols.affine import AffineLayer, AffineScalars
from deepshare.private.engines.gateshare.protocols.transfers import Transfers
from deepshare.private.ir.program import Shape
from deepshare.private.runtime.outcome import Part
from deepshare.private.transport.channel import Channel

SessionValues = Mapping[int, Any]
"""By step number, what `dealer_session`, `server_session` or `client_session` returned."""

WORD = 8
"""Bytes of a ring element."""

Multiply = Callable[[Tensor], Tensor]
"""A product with a prepared weight."""


@dataclass(eq=False, kw_only=True)
class Dealing:
    """State of the dealer while it deals one lot.

    Attributes:
        session: The dealer's.
        own: Randomness that stays with the dealer.
        server: The server's half, to be filled.
        client: The client's half, to be filled.
        passed: By step number, what a step leaves for later ones.
    """

    session: SessionValues
    own: Lot
    server: Lot
    client: Lot
    passed: dict[int, Tensor] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class Making:
    """State of a party while it makes lots with the other party, without a dealer.

    Attributes:
        party: This one.
        steps: All steps.
        lot: This party's halves, for one image each, to be filled.
        transfers: Oblivious transfers with the other party.
        scalars: Alpha and beta of all steps, in trees of keys.
        hinted: Products with the server's weights, under encryption.
        encrypted: Products of two numbers, under encryption; None where no step has any.
    """

    party: Holder
    steps: "tuple[ProtocolStep, ...]"
    lot: LotBatch
    transfers: Transfers
    scalars: AffineScalars
    hinted: HintedEnd
    encrypted: Encrypted | None
    _early: dict[int, Tensor] = field(default_factory=dict)

    def early_share(self, number: int) -> Tensor:
        """The client's share of a step's result, if it is early; see `ProtocolStep.is_early`."""
        if number not in self._early:
            step = self.steps[number]
            self._early[number] = step.early_share(self)
        return self._early[number]


@dataclass(frozen=True, eq=False)
class ProductTrial:
    """A product with numbers of no meaning, to be timed.

    Attributes:
        key: Equal for products that take the same time.
        takes: Shape of its input without the batch.
        prepare: Prepares the server's product online, and those of dealer and client before the image.
    """

    key: object
    takes: Shape
    prepare: Callable[[], tuple[Multiply, Sequence[Multiply]]]


@dataclass(frozen=True, eq=False)
class EncryptedProduct:
    """Products of the client's numbers with the server's, one by one, that a step needs.

    Attributes:
        count: How many.
        factor: This party's numbers, flat.
        keep: Puts this party's shares, flat, into the lots.
    """

    count: int
    factor: Callable[[Making], Tensor]
    keep: Callable[[Making, Tensor], None]


@dataclass(eq=False, kw_only=True)
class ClientOffline:
    """State of the client while it computes its shares of one lot.

    Attributes:
        session: The client's.
        lot: The client's half.
        seed: Of its share of the images; not even the dealer knows it.
        openings: What it will send to the server before the images, masked.
        held: By step number, what it needs with the images.
        unsafe: Images for which some share cannot be truncated safely.
    """

    session: SessionValues
    lot: LotBatch
    seed: bytes
    openings: dict[Piece, Tensor] = field(default_factory=dict)
    held: dict[int, Batch] = field(default_factory=dict)
    unsafe: set[int] = field(default_factory=set)


@dataclass(eq=False, kw_only=True)
class ServerOffline:
    """State of the server while it does all that can be done before the images.

    Attributes:
        session: The server's.
        lot: The server's halves.
        openings: What the client sent.
        held: By step number, what it needs with the images.
    """

    session: SessionValues
    lot: LotBatch
    openings: Mapping[Piece, Tensor]
    held: dict[int, Any] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class ClientOnline:
    """State of the client during one inference.

    Attributes:
        images: The images.
        held: From `ClientOffline`.
        server: The connection to the server.
        waited: To be called after waiting for the server, which is not the client's time.
        passed: By step number, what a step leaves for later ones.
    """

    images: Tensor
    held: Mapping[int, Any]
    server: Channel
    waited: Callable[[], None]
    passed: dict[int, Tensor] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class ServerOnline:
    """State of the server during one inference.

    Attributes:
        images: How many images.
        session: The server's.
        held: From `ServerOffline`.
        client: The connection to the client.
        passed: By step number, what a step leaves for later ones.
    """

    images: int
    session: SessionValues
    held: Mapping[int, Any]
    client: Channel
    passed: dict[int, Tensor] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class InTheClear:
    """State of an evaluation without shares.

    Attributes:
        images: The images.
        shares: For each truncation the client's share, which decides how it rounds; None rounds down.
        thresholds: For each activation whose comparisons drop bits, what decides gates near zero; see `protocols.gate`.
            Without, these are exact.
        products: For each linear step what its product under encryption is off by; without, these are exact.
        passed: By step number, what a step leaves for later ones.
    """

    images: Tensor
    shares: Mapping[int, Tensor] | None
    thresholds: Mapping[int, Tensor] = field(default_factory=dict)
    products: Mapping[int, Tensor] = field(default_factory=dict)
    passed: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, kw_only=True)
class ProtocolStep(ABC):
    """One step of a schedule, on tensors t = t_S + t_C mod 2^64 of which the client knows t_C before the images.

    Attributes:
        number: Its place in the schedule; labels its masks and its frames.
        operation: Number of the operation that it belongs to.
        inputs: Numbers of the steps that it reads.
        shape: Shape of its result without the batch.
        scale: Fractional bits of its result.
        dealt: Whether a dealer makes its lots; else the parties do.
        interactive: Whether the client takes part online.
        opened_first: Whether the client opens its tensors before those of other kinds, in the frame before the images.
    """

    interactive: ClassVar[bool] = False
    opened_first: ClassVar[bool] = False

    number: int
    operation: int
    inputs: tuple[int, ...]
    shape: Shape
    scale: int
    dealt: bool = True

    @property
    def elements(self) -> int:
        """Elements of its result for each image."""
        return math.prod(self.shape)

    # Sizes, from shapes alone

    def masked_weight_shapes(self) -> list[Shape]:
        """Shapes of what the server sends to the client once per session."""
        return []

    def dealt_bytes(self, images: int, party: Holder) -> dict[str, int]:
        """Bytes of a party's lot for some images, by name; their order is that of the wire and of files."""
        return {}

    @property
    def has_transfers(self) -> bool:
        """True if `transfer` does something."""
        return False

    @property
    def transfers_with(self) -> int | None:
        """Number of the step whose `transfer` serves this one; None where there is none."""
        return None

    def transfer_cost(self, images: int) -> Part:
        """Bytes of `transfer` for some images."""
        return Part()

    def affine_layer(self) -> AffineLayer | None:
        """The step, if it has alpha and beta."""
        return None

    def client_openings(self) -> dict[Piece, Shape]:
        """Shapes of what the client sends before each image."""
        return {}

    def online_cost(self, images: int) -> Part:
        """Bytes, rounds, comparisons and products of one inference of some images."""
        return Part()

    def product_trials(self) -> list[ProductTrial]:
        """Its products."""
        return []

    def is_early(self, inputs: list[bool]) -> bool:
        """Return True if the client's share of the result follows from transfers alone, given which inputs' shares do.

        Then it needs no mask in linear layers: the server has the rest of the result, which is masked already.
        """
        return False

    @property
    def unsafe_shares(self) -> float:
        """Expected number of shares of an image that cannot be truncated safely."""
        return 0.0

    @property
    def held_bytes(self) -> int:
        """About how many bytes a party holds for one image between preprocessing and the image, lots aside."""
        return 0

    # Once per session

    def dealer_session(self, seed: bytes) -> Any:
        """The dealer's part of the weights' masks, expanded from the seed that it shares with the server."""

    def server_session(self, seed: bytes) -> tuple[Any, list[Tensor]]:
        """The server's part of its weights, and the masked weights for the client."""
        return None, []

    def client_session(self, masked_weights: list[Tensor]) -> Any:
        """The client's part of the masked weights."""

    # Before the images

    def deal(self, at: Dealing) -> None:
        """Fill in the dealer's part of a lot."""

    def transfer(self, at: Making) -> None:
        """Fill in what comes from oblivious transfers with the other party, where there is no dealer."""

    def hinted_layers(self) -> list[HintedLayer]:
        """Layers that `multiply` multiplies by the server's weights, where there is no dealer."""
        return []

    def hinted_weights(self) -> list[Tensor]:
        """Their weights as ring elements; the server's alone."""
        return []

    def multiply(self, at: Making) -> Tensor:
        """This party's share of the sum of those layers, after all transfers; `keep_product` puts it into the lots."""
        raise AssertionError(self)

    def keep_product(self, at: Making, share: Tensor) -> None:
        """Put a share of `multiply` into the lots."""

    def encrypted(self, images: int) -> EncryptedProduct | None:
        """Products of numbers of both parties, after all that, where there is no dealer."""
        return None

    def early_share(self, at: Making) -> Tensor:
        """The client's share of the result, if it is early."""
        state = ClientOffline(session={}, lot=at.lot, seed=b"")
        return self.client_offline([at.early_share(source) for source in self.inputs], state)

    @abstractmethod
    def client_offline(self, inputs: list[Tensor], at: ClientOffline) -> Tensor:
        """The client's share of the result, from its shares of the inputs."""

    def server_offline(self, at: ServerOffline) -> None:
        """The server's work before the images."""

    # With the images

    def client_online(self, at: ClientOnline) -> None:
        """The client's messages, if the step is interactive; its share of the result is known already."""

    @abstractmethod
    def server_online(self, inputs: list[Tensor], at: ServerOnline) -> Tensor:
        """The server's share of the result, from its shares of the inputs."""

    # Without shares

    @abstractmethod
    def in_the_clear(self, inputs: list[Tensor], at: InTheClear) -> Tensor:
        """The result, from the inputs."""
