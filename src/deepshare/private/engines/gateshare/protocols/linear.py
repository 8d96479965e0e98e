"""Linear layers: y = sum over terms of W t, plus biases; convolutions, fully connected and diagonal layers.

Online no message is sent and the client does nothing. Letters: t = t_S + t_C is an input, W the server's weight, L its
mask, D the masked weight, a the client's mask of t_C, c the sum over all terms of L a.

Once per session
    1. dealer -> server   seed of L, one L for each W. An L belongs to one exact W: other weights need a new session.
    2. server -> client   D = W - L                                                        8 bytes a weight

Before the images
    3. dealer -> server   c_S = c - c_C                                                    8 bytes an element of y
       client             expands a ("tensor", one for each t, whoever reads it) and c_C ("product") from its seed
    4. client             y_C = sum of D a, + c_C
    5. client -> server   e = t_C - a                                                      8 bytes an element of t

With the images
    6. server             y_S = sum of W (t_S + e), + c_S + biases

So y_S + y_C = sum of W (t_S + t_C - a) + L a + (W - L) a, + biases = sum of W t, + biases. The client's products depend
on no layer before theirs, and the server multiplies once, with numbers as small as weights are.

Without a dealer there is no L and no D: c = W a is made by both under encryption, and y_C = c_C
(`LinearStep.multiply`, `crypto.hinted`). Where t_C follows from transfers alone, as behind gates, a is t_C itself: t_S
is masked by it already, and step 5 falls away.

The result has the fractional bits of t and of W together: see `truncation`. A sum of layers that nothing else reads is
one step, with one correction c_S; without a dealer a step has at most `MOST_ADDED` layers, and larger sums several.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from deepshare.private.engines.gateshare.crypto.hinted import MOST_ADDED, HintedLayer
from deepshare.private.engines.gateshare.crypto.limb_matmul import (
    Geometry,
    Weight,
    plain_weight,
    ring_weight,
)
from deepshare.private.engines.gateshare.crypto.phases import Phases
from deepshare.private.engines.gateshare.crypto.ring import encode, mask
from deepshare.private.engines.gateshare.lot import Holder, Piece
from deepshare.private.engines.gateshare.protocols.local import SumStep
from deepshare.private.engines.gateshare.protocols.schedule import ScheduleBuilder
from deepshare.private.engines.gateshare.protocols.step import (
    WORD,
    ClientOffline,
    Dealing,
    EncryptedProduct,
    InTheClear,
    Making,
    Multiply,
    ProductTrial,
    ProtocolStep,
    ServerOffline,
    ServerOnline,
)
from deepshare.private.ir.program import Add, Convolution, Linear, Program, Shape, hidden_tensors


@dataclass(frozen=True, eq=False)
class Diagonal:
    """A linear layer that multiplies every neuron by a number of its own; both tensors broadcast to the neurons."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearTerm:
    """One layer of a sum.

    Attributes:
        label: Of its mask: the number of its operation, or for a diagonal layer a number after those of all operations.
        layer: The layer; without values in an outline.
        bits: Fractional bits of its weight.
        takes: Shape of its input without the batch.
        early: Whether a is the client's share of the input, and nothing is opened.
    """

    label: int
    layer: Convolution | Linear | Diagonal
    bits: int
    takes: Shape
    early: bool = False

    def weight(self) -> Tensor:
        """Encode W."""
        return encode(self.layer.weight, self.bits)

    def weight_mask(self, seed: bytes) -> Tensor:
        """Expand L."""
        return mask(seed, self.layer.weight.shape, "weight", self.label)

    def bias(self, dimensions: int) -> Tensor:
        """The bias, broadcast to results of so many dimensions."""
        bias = self.layer.bias.double()
        return bias if isinstance(self.layer, Diagonal) else bias.view(-1, *[1] * (dimensions - 1))

    def hinted(self) -> HintedLayer | None:
        """The layer as a product under encryption; None if it has a weight for every neuron."""
        weight, (channels, high, wide) = self.layer.weight, (*self.takes, 1, 1)[:3]
        match self.layer:
            case Diagonal():
                if high * wide == 1 or weight.dim() not in (0, 3) or weight.shape[1:].numel() != 1:
                    return None
                outputs, kernel, geometry = channels, (1, 1), Geometry(groups=channels)
            case Linear():
                outputs, kernel, geometry = len(weight), (1, 1), Geometry()
            case Convolution(stride=stride, padding=padding, dilation=dilation, groups=groups):
                outputs, kernel = len(weight), (weight.shape[2], weight.shape[3])
                geometry = Geometry(stride, padding, dilation, groups)
        takes = (channels, high, wide)
        if (phases := self._phases()) is not None:
            takes, kernel, geometry = phases.takes, phases.kernel, phases.geometry
        return HintedLayer(label=self.label, takes=takes, outputs=outputs, kernel=kernel, geometry=geometry)

    def kernels(self) -> Tensor:
        """The weights of `hinted`, (outputs, channels, *kernel)."""
        W = self.weight()
        match self.layer:
            case Diagonal():
                return W.expand(self.takes[0], 1, 1)[..., None]
            case Linear():
                return W[..., None, None]
            case Convolution():
                phases = self._phases()
                return W if phases is None else phases.kernels(W)

    def hinted_input(self, t: Tensor) -> Tensor:
        """Inputs of the layer as those of `hinted`, (images, C, H, W)."""
        maps = t.reshape(-1, *(*self.takes, 1, 1)[:3])
        phases = self._phases()
        return maps if phases is None else phases.split(maps)

    def _phases(self) -> Phases | None:
        return Phases.of(self.layer, self.takes) if isinstance(self.layer, Convolution) else None

    def trial(self) -> ProductTrial:
        """The product, to be timed: by its shapes, whatever its values."""
        shape, moves = tuple(self.layer.weight.shape), ("stride", "padding", "dilation", "groups")
        key = (type(self.layer), shape, self.takes, *(getattr(self.layer, name, None) for name in moves))

        def prepare() -> tuple[Multiply, list[Multiply]]:
            any_mask = torch.randint(-(1 << 62), 1 << 62, shape)
            return self.multiply(self.weight(), plain_weight), [self.multiply(any_mask)] * 2

        return ProductTrial(key, self.takes, prepare)

    def multiply(self, weight: Tensor, prepare: Callable[[Tensor, Geometry | None], Weight] = ring_weight) -> Multiply:
        """Prepare products with W, or with L or D in its place."""
        match self.layer:
            case Diagonal():
                return weight.mul
            case Linear():
                return prepare(weight, None)
            case Convolution(stride=stride, padding=padding, dilation=dilation, groups=groups):
                return prepare(weight, Geometry(stride, padding, dilation, groups))


@dataclass(frozen=True, eq=False)
class ServerLinear:
    """Held by the server before the images: c_S + biases, and e of each term that has one."""

    rest: Tensor
    e: list[Tensor | None]


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearStep(ProtocolStep):
    """A sum of linear layers, with one term for each input."""

    opened_first = True

    terms: tuple[LinearTerm, ...]

    def masked_weight_shapes(self) -> list[Shape]:
        """Shapes of D."""
        return [tuple(term.layer.weight.shape) for term in self.terms] if self.dealt else []

    def dealt_bytes(self, images: int, party: Holder) -> dict[str, int]:
        """Size of c_S; of c_C too, where there is no dealer."""
        return {} if self.dealt and party == "client" else {"product": WORD * images * self.elements}

    def client_openings(self) -> dict[Piece, Shape]:
        """Shapes of e."""
        pairs = zip(self.inputs, self.terms, strict=True)
        return {(source, "tensor"): term.takes for source, term in pairs if not term.early}

    def product_trials(self) -> list[ProductTrial]:
        """Those of its terms."""
        return [term.trial() for term in self.terms]

    def dealer_session(self, seed: bytes) -> list[Multiply]:
        """Prepare products with L."""
        return [term.multiply(term.weight_mask(seed)) for term in self.terms]

    def server_session(self, seed: bytes) -> tuple[list[Multiply], list[Tensor]]:
        """Prepare products with W; do step 2."""
        weights = [(term, term.weight()) for term in self.terms]
        products = [term.multiply(W, plain_weight) for term, W in weights]
        return products, [W - term.weight_mask(seed) for term, W in weights] if self.dealt else []

    def client_session(self, masked_weights: list[Tensor]) -> list[Multiply] | None:
        """Prepare products with D."""
        if not self.dealt:
            return None
        return [term.multiply(D) for term, D in zip(self.terms, masked_weights, strict=True)]

    def deal(self, at: Dealing) -> None:
        """Do step 3."""
        products: list[Multiply] = at.session[self.number]
        c = [
            L(at.client.mask("tensor", source, term.takes))
            for L, source, term in zip(products, self.inputs, self.terms, strict=True)
        ]
        c_S = reduce(Tensor.add_, c).sub_(at.client.mask("product", self.number, self.shape))
        at.server.put("product", self.number, c_S)

    def hinted_layers(self) -> list[HintedLayer]:
        """All but those with a weight for every neuron."""
        found = (term.hinted() for term in self.terms)
        return [layer for layer in found if layer is not None]

    def hinted_weights(self) -> list[Tensor]:
        """Encode W."""
        return [term.kernels() for term in self.terms if term.hinted() is not None]

    def multiply(self, at: Making) -> Tensor:
        """Do steps 1 to 4 without a dealer: c = W a."""
        layers, own = self.hinted_layers(), []
        if at.party == "client":
            terms = zip(self.inputs, self.terms, strict=True)
            found = [(self.own_mask(source, term, at), term) for source, term in terms]
            own = [term.hinted_input(a) for a, term in found if term.hinted() is not None]
        return at.hinted.product(layers, own, at.lot.images).reshape(-1, *self.shape)

    def keep_product(self, at: Making, share: Tensor) -> None:
        """Add a share of some terms to that of c."""
        if at.lot.has("product", self.number):
            share = share + at.lot.share("product", self.number, self.shape)
        at.lot.put("product", self.number, share)

    def encrypted(self, images: int) -> EncryptedProduct | None:
        """The same for terms with a weight for every neuron."""
        terms = [pair for pair in zip(self.inputs, self.terms, strict=True) if pair[1].hinted() is None]
        if not terms:
            return None

        def factor(at: Making) -> Tensor:
            if at.party == "client":
                return torch.cat([self.own_mask(source, term, at).flatten() for source, term in terms])
            shape = (at.lot.images, *self.shape)
            return torch.cat([term.weight().expand(shape).flatten() for _, term in terms])

        def keep(at: Making, share: Tensor) -> None:
            self.keep_product(at, share.view(len(terms), -1, *self.shape).sum(0))

        return EncryptedProduct(len(terms) * images * self.elements, factor, keep)

    def own_mask(self, source: int, term: LinearTerm, at: Making) -> Tensor:
        """The client's a."""
        return at.early_share(source) if term.early else at.lot.mask("tensor", source, term.takes)

    def client_offline(self, inputs: list[Tensor], at: ClientOffline) -> Tensor:
        """Do steps 4 and 5."""
        products: list[Multiply] | None = at.session[self.number]
        y_C = at.lot.share("product", self.number, self.shape)
        for i, (source, term, t_C) in enumerate(zip(self.inputs, self.terms, inputs, strict=True)):
            if term.early:
                continue
            a = at.lot.mask("tensor", source, term.takes)
            if products is not None:
                y_C = products[i](a).add_(y_C)
            if (source, "tensor") not in at.openings:  # another layer reads it too
                at.openings[source, "tensor"] = t_C - a
        return y_C

    def server_offline(self, at: ServerOffline) -> None:
        """Read c_S and e."""
        rest = self.bias() + at.lot.share("product", self.number, self.shape)
        at.held[self.number] = ServerLinear(rest, [at.openings.get((source, "tensor")) for source in self.inputs])

    def server_online(self, inputs: list[Tensor], at: ServerOnline) -> Tensor:
        """Do step 6."""
        products: list[Multiply] = at.session[self.number]
        mine: ServerLinear = at.held[self.number]
        y_S = mine.rest
        for W, t_S, e in zip(products, inputs, mine.e, strict=True):
            y_S = W(t_S if e is None else t_S + e).add_(y_S)
        return y_S

    def in_the_clear(self, inputs: list[Tensor], at: InTheClear) -> Tensor:
        """Multiply by W."""
        y = self.bias()
        for term, t in zip(self.terms, inputs, strict=True):
            y = y + term.multiply(term.weight(), plain_weight)(t)
        return y if self.number not in at.products else y + at.products[self.number]

    def bias(self) -> Tensor:
        """The sum of all biases at the scale of the result."""
        first, *others = (term.bias(len(self.shape)) for term in self.terms)
        return encode(sum(others, first), self.scale)


def sums_of_layers(program: Program) -> dict[int, tuple[int, ...]]:
    """Find the sums that become one step.

    Returns:
        For each linear layer, and for each sum of nothing but linear layers that nothing else reads, the numbers of its
        layers; none where it is a part of a larger sum.
    """
    readers = Counter(source for operation in program.operations for source in operation.inputs)
    readers[len(program.operations) - 1] += 1
    sums: dict[int, tuple[int, ...]] = {}
    parts: set[int] = set()
    for number, operation in enumerate(program.operations):
        if isinstance(operation, Convolution | Linear):
            sums[number] = (number,)
        elif isinstance(operation, Add) and all(i in sums and readers[i] == 1 for i in operation.inputs):
            sums[number] = tuple(layer for source in operation.inputs for layer in sums[source])
            parts.update(operation.inputs)
    return {number: () if number in parts else layers for number, layers in sums.items()}


def sums_under_encryption(program: Program, bits: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Layers whose results are added under encryption, and their largest weights of an output with so many bits."""
    for layers in sums_of_layers(program).values():
        for part in (layers[i : i + MOST_ADDED] for i in range(0, len(layers), MOST_ADDED)):
            weights = [hidden_tensors(program.operations[number])["weight"] for number in part]
            if not any(weight.is_meta for weight in weights):
                yield part, sum(int(encode(weight, bits).abs().flatten(1).sum(1).max()) for weight in weights)


def lower_sum(builder: ScheduleBuilder, operation: int, layers: tuple[int, ...]) -> None:
    """Add the steps of an operation that is a sum of linear layers, given by their numbers."""
    terms: list[tuple[int, int, Convolution | Linear]] = []
    for label in layers:
        layer = builder.program.operations[label]
        if not isinstance(layer, Convolution | Linear):
            raise TypeError(layer)
        terms.append((builder.at_activation_scale(layer.inputs[0]), label, layer))
    most = len(terms) if builder.dealt else MOST_ADDED
    total, *others = [add_linear(builder, operation, terms[i : i + most]) for i in range(0, len(terms), most)]
    for other in others:
        part = builder.steps[total]
        total = builder.append(
            SumStep(
                number=builder.next_number,
                operation=operation,
                inputs=(total, other),
                shape=part.shape,
                scale=part.scale,
                lifts=(0, 0),
            ),
            result_of=operation,
        )


def add_linear(
    builder: ScheduleBuilder, operation: int, terms: Sequence[tuple[int, int, Convolution | Linear | Diagonal]]
) -> int:
    """Add a linear step as the result of an operation; terms are the step that each reads, its label and its layer."""
    bits = builder.number_format.weight
    step = LinearStep(
        number=builder.next_number,
        operation=operation,
        inputs=tuple(source for source, _, _ in terms),
        shape=builder.program.operations[operation].shape,
        scale=builder.number_format.fraction + bits,
        terms=tuple(
            LinearTerm(
                label=label,
                layer=layer,
                bits=bits,
                takes=builder.steps[source].shape,
                early=builder.is_early(source),
            )
            for source, label, layer in terms
        ),
    )
    return builder.append(step, result_of=operation)
