"""Gates: y = x (alpha g + beta) with g = [x >= 0], where one comparison serves all neurons that share its gate.

Letters. x = x_S + x_C is the input, a_S and a_C the parties' masks of it, A = a_S + a_C. b is a random bit of each gate
that only the dealer knows. p is the client's pad. L_alpha and L_beta are the masks of alpha and beta. A leader computes
gates; a follower uses the h and b of its leader, with masks of its own.

Once per session
    1. dealer -> server   seed of L_alpha, L_beta
    2. server -> client   D_alpha = alpha - L_alpha, D_beta = beta - L_beta                   8 bytes a channel, each

Before the images
    3. dealer -> server   Ab_S = A b - Ab_C  ("masked")                                       8 bytes a neuron
                          w_S = w - w_C, w = L_alpha p - L_beta a_C  ("affine")               8 bytes a neuron
       dealer, leader     b_S = b - b_C, to the server  ("bit")                               8 bytes a gate
                          keys of a `comparison` with r = -A, to both
       Expanded from seeds: a_S, a_C ("neurons"), Ab_C, w_C, b_C, p ("pad")
    4. client             v_C = D_alpha p - D_beta a_C + w_C, so w_S + v_C = alpha p - beta a_C;
                          its share of y is y_C = -v_C
    5. client -> server   e_C = x_C - a_C                                                     8 bytes a neuron

With the images
    6. server -> client   e_S = x_S - a_S                                                     8 bytes a neuron
       both               eps = e_S + e_C = x - A
    7. leader, both ways  h_S, h_C, shares of h = g xor b, by `comparison` of eps             a bit a gate
    8. both               xb = eps b + A b, share by share
                          u = x g = h x + (1 - 2 h) xb, share by share
       client -> server   u_C + p, in one frame with h_C                                      8 bytes a neuron
    9. server             y_S = alpha (u_S + u_C + p) + beta (x_S + e_C) - w_S

So y_S + y_C = alpha u + alpha p + beta (x - a_C) - (alpha p - beta a_C) = alpha x g + beta x.

Without a dealer both parties have a share of all that is dealt here, a_S and a_C come from `transfers` like A b and b,
w = alpha p - beta a_C and p come from `affine` and w is v, and 7 is `carry` instead of `comparison`
(`GateStep.transfer`).

A ReLU has no alpha and beta: 1, 2 and w fall away, v_C = p and y_S = u_S + u_C + p. The masked opening eps, which
the product needs anyway, is the input of the comparison, so that a comparison costs no message. The server sends e_S
first: both evaluate their keys at the same time. Where several neurons decide together, the sum of their x is compared,
and r is minus the sum of their A.

Steps 8 and 9 are linear in e_S. All else in them is known before the images but for h, so that both parties compute it
for h = 0 and h = 1, choose, and add e_S times a factor:

       client             u_C + p = r_h + (1 - 2 h) b_C e_S,   r_0 = p + m, r_1 = p + x_C - m, m = b_C e_C + Ab_C
       server             y_S = n_h + beta e_S + alpha (t_h e_S + u_C + p),   t_0 = b_S, t_1 = 1 - b_S,
                          n_0 = c + alpha m, n_1 = c + alpha (a_S - m), m = b_S e_C + Ab_S, c = beta (a_S + e_C) - w_S

All of that is computed in memory that was written to before the images, because the first write to a page takes long.

Where comparisons drop the d lowest bits (`NumberFormat.dropped`), (eps - 2^(d-1)) >> d and r >> d are compared instead.
With r_0, the low bits of r, their difference is floor((x + r_0 - 2^(d-1)) / 2^d): the gate is [x >= 2^(d-1) - r_0]. As
r_0 is uniform, a gate is wrong with probability max(0, 1/2 - |x| / 2^d), x in units of the last place, and right for
all |x| >= 2^(d-1).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepshare.private.engines.gateshare.crypto.dcf import Bits
from deepshare.private.engines.gateshare.crypto.ring import encode, mask
from deepshare.private.engines.gateshare.fixedpoint import AFFINE_LIMITS
from deepshare.private.engines.gateshare.lot import Batch, Holder, LotBatch, Piece
from deepshare.private.engines.gateshare.protocols.affine import affine_cost, digit_bits, make_affine
from deepshare.private.engines.gateshare.protocols.carry import (
    Carries,
    carry_bits,
    carry_bytes,
    carry_cost,
    carry_making,
    make_carries,
    read_carries,
)
from deepshare.private.engines.gateshare.protocols.comparison import (
    Comparisons,
    comparison_bytes,
    deal_comparisons,
    pack,
    packed_size,
    read_comparisons,
    unpack,
)
from deepshare.private.engines.gateshare.protocols.schedule import ScheduleBuilder
from deepshare.private.engines.gateshare.protocols.step import (
    WORD,
    ClientOffline,
    ClientOnline,
    Dealing,
    InTheClear,
    Making,
    ProtocolStep,
    ServerOffline,
    ServerOnline,
)
from deepshare.private.engines.gateshare.protocols.transfers import gate_cost, make_gate_masks
from deepshare.private.ir.patches import count_cells, sums
from deepshare.private.ir.program import GatedActivation, Shape, SharedActivation
from deepshare.private.runtime.outcome import Part


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientGate(Batch):
    """Held by the client for one activation before the images, which overwrite it; the last two for a leader.

    Attributes:
        e_S: Room for what the server sends.
        e_C: Of what is compared.
    """

    b_C: Tensor
    r_0: Tensor
    r_1: Tensor
    e_S: Tensor
    e_C: Tensor | None
    keys: Comparisons | Carries | None


@dataclass(frozen=True, eq=False, kw_only=True)
class ServerGate:
    """Held by the server for one activation before the images, which overwrite it; the last two for a leader.

    Attributes:
        minus_a_S: Becomes e_S.
        padded_u_C: Room for what the client sends.
        e_C: Of what is compared.
    """

    minus_a_S: Tensor
    b_S: Tensor
    n_0: Tensor
    n_1: Tensor
    padded_u_C: Tensor
    e_C: Tensor | None
    keys: Comparisons | Carries | None


@dataclass(frozen=True, eq=False)
class AlphaBeta:
    """Alpha and beta of an activation, or two tensors in their place (masks, masked), ready to multiply neurons."""

    alpha: Tensor
    beta: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class GateStep(ProtocolStep):
    """An activation.

    Attributes:
        leader: Number of the step that computes its gates.
        leads: Whether it is this one.
        neurons: Shape of what is multiplied by gates.
        prototypes: How many of the first channels of the neurons are compared.
        gates: Shape of the gates.
        bits: Of the numbers that are compared, without those that are dropped.
        dropped: d, the lowest bits, which comparisons do not see.
        pi: For each channel of the neurons its gate; None where each neuron has its own.
        cells: For each neuron that is compared, in order, its cell, whose sum is; None where each is alone.
        where: The neurons' places among all elements; None where they are all. The others pass.
        affine: Alpha and beta as real numbers, one a channel; None for a ReLU.
        affine_bits: Fractional bits of alpha and beta.
        affine_limit: They are below it.
    """

    interactive = True

    leader: int
    leads: bool
    neurons: Shape
    prototypes: int
    gates: Shape
    bits: int
    pi: Tensor | None
    cells: Tensor | None
    where: Tensor | None
    affine: AlphaBeta | None
    affine_bits: int
    affine_limit: int
    dropped: int = 0

    @property
    def comparisons(self) -> int:
        """Gates that are computed here for each image."""
        return math.prod(self.gates) if self.leads else 0

    @property
    def compared_bits(self) -> int:
        """Bits of the numbers that are compared, as the comparison takes them."""
        return self.bits if self.dealt else carry_bits(self.bits)

    @property
    def products(self) -> int:
        """Neurons for each image."""
        return math.prod(self.neurons)

    # Sizes

    def masked_weight_shapes(self) -> list[Shape]:
        """Shapes of D_alpha and D_beta."""
        return [(self.neurons[0],)] * 2 if self.affine is not None and self.dealt else []

    def dealt_bytes(self, images: int, party: Holder) -> dict[str, int]:
        """Size of step 3."""
        gates, words = images * self.comparisons, WORD * images * self.products
        compare = comparison_bytes if self.dealt else carry_bytes
        compared = compare(gates, self.compared_bits, party) if self.leads else {}
        if self.dealt and party == "client":
            return compared
        masked = {"masked": words} if self.dealt else {"neurons": words, "masked": words}
        affine = {} if self.affine is None else {"affine": words}
        if self.affine is not None and party == "client":
            affine["pad"] = words
        return masked | affine | ({"bit": WORD * gates} if self.leads else {}) | compared

    @property
    def has_transfers(self) -> bool:
        """A leader's are those of its followers, too."""
        return self.leads

    @property
    def transfers_with(self) -> int:
        """The leader."""
        return self.leader

    def transfer_cost(self, images: int) -> Part:
        """Size of the transfers, and of what alpha and beta need."""
        cost = Part() if self.affine is None else affine_cost(images * self.products)
        if not self.leads:
            return cost
        gates = images * self.comparisons
        return cost + gate_cost(gates) + carry_making(gates, self.compared_bits)

    def client_openings(self) -> dict[Piece, Shape]:
        """Shape of e_C."""
        return {(self.number, "neurons"): self.neurons}

    def online_cost(self, images: int) -> Part:
        """Size of steps 6 to 8: one message each way, and those of carries; three products with alpha and beta."""
        gates = images * self.comparisons
        sent = WORD * images * self.products + packed_size(gates)
        products = images * self.products * (1 if self.affine is None else 3)
        cost = Part(server_bytes=sent, client_bytes=sent, rounds=1, comparisons=gates, products=products)
        return cost if self.dealt or not self.leads else cost + carry_cost(gates, self.compared_bits)

    @property
    def held_bytes(self) -> int:
        """About four tensors."""
        return 4 * WORD * self.products

    # Once per session

    def dealer_session(self, seed: bytes) -> AlphaBeta | None:
        """Expand L_alpha and L_beta."""
        return None if self.affine is None else self.affine_masks(seed)

    def server_session(self, seed: bytes) -> tuple[AlphaBeta | None, list[Tensor]]:
        """Do steps 1 and 2."""
        if self.affine is None:
            return None, []
        plain = self.encoded_affine(self.affine)
        if not self.dealt:
            return plain, []
        L = self.affine_masks(seed)
        return plain, [(plain.alpha - L.alpha).flatten(), (plain.beta - L.beta).flatten()]

    def client_session(self, masked_weights: list[Tensor]) -> AlphaBeta | None:
        """Keep D_alpha and D_beta."""
        return AlphaBeta(*map(self.per_channel, masked_weights)) if masked_weights else None

    def encoded_affine(self, affine: AlphaBeta) -> AlphaBeta:
        """Alpha and beta as ring elements."""
        return AlphaBeta(
            *(self.per_channel(encode(values, self.affine_bits)) for values in (affine.alpha, affine.beta))
        )

    def affine_masks(self, seed: bytes) -> AlphaBeta:
        """Expand L_alpha and L_beta."""
        shape = (self.neurons[0],)
        return AlphaBeta(*(self.per_channel(mask(seed, shape, name, self.operation)) for name in ("alpha", "beta")))

    # Before the images

    def deal(self, at: Dealing) -> None:
        """Do step 3."""
        a_C, A = (lot.mask("neurons", self.number, self.neurons) for lot in (at.client, at.server))
        A += a_C
        if self.leads:
            bits = deal_comparisons(self.number, self.bits, self.compared(A).neg() >> self.dropped, at)
            b = at.passed[self.number] = self.shaped(bits).long()
            at.server.put("bit", self.number, b - at.client.mask("bit", self.number, self.gates))
        b = self.per_neuron(at.passed[self.leader])
        A *= b
        A -= at.client.mask("masked", self.number, self.neurons)
        at.server.put("masked", self.number, A)
        L: AlphaBeta | None = at.session[self.number]
        if L is not None:
            p = at.client.mask("pad", self.number, self.neurons)
            w = p.mul_(L.alpha).sub_(a_C.mul_(L.beta))
            w -= at.client.mask("affine", self.number, self.neurons)
            at.server.put("affine", self.number, w)

    def transfer(self, at: Making) -> None:
        """Do steps 1 to 4 without a dealer: masks, comparisons, alpha and beta of a leader and its followers."""
        lot, images = at.lot, at.lot.images
        gates = torch.arange(images * self.comparisons).view(images, *self.gates)
        sites = [step for step in at.steps if isinstance(step, GateStep) and step.leader == self.number]
        make_gate_masks(
            self.number,
            self.comparisons,
            {step.number: step.per_neuron(gates).expand(images, *step.neurons) for step in sites},
            lot,
            at.transfers,
        )
        a = lot.share("neurons", self.number, self.neurons)
        make_carries(self.number, self.compared_bits, self.compared(a), lot, at.transfers)
        for step in sites:
            if step.affine is not None:
                step.make_affine(at)

    def affine_layer(self) -> "GateStep | None":
        """The step, if it has alpha and beta."""
        return None if self.affine is None else self

    @property
    def affine_channels(self) -> int:
        """Number of alphas."""
        return self.neurons[0]

    @property
    def digit_bits(self) -> int:
        """Bits of half an alpha."""
        return digit_bits(self.affine_bits, self.affine_limit)

    def affine_numbers(self) -> Tensor:
        """Alpha and beta as ring elements, (2, channels)."""
        if self.affine is None:
            raise TypeError(self)
        return encode(torch.stack([self.affine.alpha, self.affine.beta]), self.affine_bits)

    def make_affine(self, at: Making) -> None:
        """Put shares of alpha p - beta a_C into the lots, and p into the client's."""
        channels, images = self.neurons[0], at.lot.images
        a_C = None
        if at.party == "client":
            a_C = self.by_channel(at.lot.share("neurons", self.number, self.neurons))
        share, p = make_affine(self, at.scalars, at.transfers, images * self.products // channels, a_C)
        for name, values in (("affine", share), ("pad", p)):
            if values is not None:
                at.lot.put(name, self.number, values.reshape(channels, images, -1).transpose(0, 1))

    def by_channel(self, x: Tensor) -> Tensor:
        """Neurons of all images as (channels, rows)."""
        return x.transpose(0, 1).reshape(self.neurons[0], -1)

    def read(self, a: Tensor, lot: LotBatch, party: Holder) -> Comparisons | Carries | None:
        """A leader's comparisons, given its mask of x."""
        if not self.leads:
            return None
        if self.dealt:
            return read_comparisons(self.number, self.bits, self.comparisons, lot)
        return read_carries(self.number, self.compared_bits, self.compared(a).view(len(a), -1), lot, party)

    def client_offline(self, inputs: list[Tensor], at: ClientOffline) -> Tensor:
        """Do steps 4 and 5."""
        x_C = self.picked(inputs[0])
        a_C, p, Ab_C = (at.lot.share(name, self.number, self.neurons) for name in ("neurons", "pad", "masked"))
        e_C = at.openings[self.number, "neurons"] = x_C - a_C
        b_C = at.lot.share("bit", self.leader, self.gates)
        m = torch.addcmul(Ab_C, self.per_neuron(b_C), e_C)
        at.held[self.number] = ClientGate(
            b_C=b_C,
            r_0=m + p,
            r_1=(x_C - m).add_(p),
            e_S=torch.full_like(x_C, 0),
            e_C=self.compared(e_C).view(len(e_C), -1) if self.leads else None,
            keys=self.read(a_C, at.lot, "client"),
        )
        v_C = self.negated_share(at.lot)
        if self.affine is not None and self.dealt:
            D: AlphaBeta = at.session[self.number]
            v_C = torch.addcmul(v_C, D.alpha, p).addcmul_(D.beta, a_C, value=-1)
        return self.placed(inputs[0], -v_C)

    def is_early(self, inputs: list[bool]) -> bool:
        """Return True if no neuron passes: shares of gates come from transfers."""
        return self.where is None

    def early_share(self, at: Making) -> Tensor:
        """y_C without a dealer."""
        return -self.negated_share(at.lot)

    def negated_share(self, lot: LotBatch) -> Tensor:
        """p, or what was dealt or made of v_C."""
        return lot.share("pad" if self.affine is None else "affine", self.number, self.neurons)

    def server_offline(self, at: ServerOffline) -> None:
        """Read what was dealt, and e_C."""
        e_C = at.openings[self.number, "neurons"]
        a_S, Ab_S = (at.lot.share(name, self.number, self.neurons) for name in ("neurons", "masked"))
        b_S = at.lot.share("bit", self.leader, self.gates)
        m = torch.addcmul(Ab_S, self.per_neuron(b_S), e_C)
        n_0, n_1 = m, a_S - m
        affine: AlphaBeta | None = at.session[self.number]
        if affine is not None:
            c = torch.addcmul(-at.lot.share("affine", self.number, self.neurons), affine.beta, a_S + e_C)
            n_0, n_1 = (torch.addcmul(c, affine.alpha, n) for n in (n_0, n_1))
        at.held[self.number] = ServerGate(
            minus_a_S=-a_S,
            b_S=b_S,
            n_0=n_0,
            n_1=n_1,
            padded_u_C=torch.full_like(a_S, 0),
            e_C=self.compared(e_C) if self.leads else None,
            keys=self.read(a_S, at.lot, "server"),
        )

    # With the images

    def client_online(self, at: ClientOnline) -> None:
        """Do steps 6 to 8."""
        mine: ClientGate = at.held[self.number]
        # A follower knows h already, and does what it can while the server is busy.
        known = None if self.leads else self.client_part(mine, at.passed[self.leader])
        e_S = at.server.receive_numbers(self.number, into=mine.e_S)
        at.waited()
        h_C = np.empty(0, np.bool_)
        if mine.keys is not None and mine.e_C is not None:
            eps = self.compared(e_S) + mine.e_C.view(-1)
            h_C = mine.keys.share(self.shortened(eps), "client", at.server, self.number)
            h_S = unpack(at.server.receive(self.number, packed_size(len(h_C))), len(h_C))
            at.passed[self.number] = self.shaped(h_S ^ h_C)
        r_h, factor = known or self.client_part(mine, at.passed[self.leader])
        at.server.send(self.number, r_h.addcmul_(factor, e_S), pack(h_C))

    def client_part(self, mine: ClientGate, h: Tensor) -> tuple[Tensor, Tensor]:
        """r_h, and the client's factor of e_S."""
        factor = torch.where(h, -mine.b_C, mine.b_C)
        return torch.where(self.per_neuron(h), mine.r_1, mine.r_0, out=mine.r_0), self.per_neuron(factor)

    def server_online(self, inputs: list[Tensor], at: ServerOnline) -> Tensor:
        """Do steps 6 to 9."""
        mine: ServerGate = at.held[self.number]
        affine: AlphaBeta | None = at.session[self.number]
        e_S = mine.minus_a_S.add_(self.picked(inputs[0]))
        at.client.send(self.number, e_S)
        h_S = np.empty(0, np.bool_)
        if mine.keys is not None and mine.e_C is not None:
            h_S = mine.keys.share(self.shortened(self.compared(e_S) + mine.e_C), "server", at.client, self.number)
            at.client.send(self.number, pack(h_S))
        # A follower knows h already. A leader chooses later, but both do what they can while the client is busy.
        known = None if self.leads else self.server_part(mine, at.passed[self.leader])
        if affine is not None:
            for n_h in (mine.n_0, mine.n_1) if known is None else known[:1]:
                n_h.addcmul_(affine.beta, e_S)
        padded_u_C, h_C = at.client.receive_both(self.number, packed_size(len(h_S)), into=mine.padded_u_C)
        if self.leads:
            at.passed[self.number] = self.shaped(h_S ^ unpack(h_C, len(h_S)))
        n_h, t_h = known or self.server_part(mine, at.passed[self.leader])
        padded_u = padded_u_C.addcmul_(t_h, e_S)
        y_S = n_h.add_(padded_u) if affine is None else n_h.addcmul_(affine.alpha, padded_u)
        return self.placed(inputs[0], y_S)

    def server_part(self, mine: ServerGate, h: Tensor) -> tuple[Tensor, Tensor]:
        """n_h and t_h."""
        t_h = torch.where(h, 1 - mine.b_S, mine.b_S)
        return torch.where(self.per_neuron(h), mine.n_1, mine.n_0, out=mine.n_0), self.per_neuron(t_h)

    def in_the_clear(self, inputs: list[Tensor], at: InTheClear) -> Tensor:
        """Compare and multiply."""
        x = self.picked(inputs[0])
        if self.leads:
            at.passed[self.number] = (
                (self.compared(x) >= at.thresholds.get(self.number, 0)).long().view(-1, *self.gates)
            )
        y = x * self.per_neuron(at.passed[self.leader])
        if self.affine is not None:
            affine = self.encoded_affine(self.affine)
            y = affine.alpha * y + affine.beta * x
        return self.placed(inputs[0], y)

    # Neurons and gates

    def picked(self, x: Tensor) -> Tensor:
        """The neurons that have a gate."""
        return picked(x, self.where)

    def placed(self, x: Tensor, y: Tensor) -> Tensor:
        """The result, y where there are gates and x elsewhere."""
        if self.where is None:
            return y
        result = x.flatten(1).clone()
        result[:, self.where] = y
        return result.view(x.shape)

    def compared(self, x: Tensor) -> Tensor:
        """Compared numbers, (images * gates,)."""
        first = x[:, : self.prototypes]
        return (first if self.cells is None else sums(first, self.cells)).reshape(-1)

    def shortened(self, eps: Tensor) -> Tensor:
        """Opened numbers without the bits that are dropped, rounded."""
        return (eps - (1 << (self.dropped - 1))) >> self.dropped if self.dropped else eps

    def thresholds(self, r: Tensor) -> Tensor:
        """The least x of each comparison whose gate is 1, given r: 0 unless bits are dropped."""
        return (1 << self.dropped >> 1) - (r & ((1 << self.dropped) - 1))

    def shaped(self, bits: Bits) -> Tensor:
        """Bits (images * gates,) in the shape of the gates."""
        return torch.from_numpy(np.ascontiguousarray(bits)).view(-1, *self.gates)

    def per_neuron(self, gates: Tensor) -> Tensor:
        """Spread values of the gates over the neurons."""
        if self.cells is not None:
            gates = gates[:, self.cells].view(-1, self.prototypes, *self.neurons[1:])
        if self.pi is None or self.prototypes == 1:  # which broadcasts
            return gates
        return gates[:, self.pi]

    def per_channel(self, values: Tensor) -> Tensor:
        """Alpha or beta, broadcast to neurons."""
        return values.view(-1, *[1] * (len(self.neurons) - 1))


def picked(x: Tensor, where: Tensor | None) -> Tensor:
    """Elements of each image by their places, or all as they are."""
    return x if where is None else x.flatten(1)[:, where]


def lower_shared(builder: ScheduleBuilder, operation: int, node: SharedActivation) -> None:
    """Add the step of an activation with shared gates."""
    source = builder.at_activation_scale(node.inputs[0])
    cells, leader = node.cells, builder.next_number if node.leads else builder.result(node.leader)
    step = GateStep(
        number=builder.next_number,
        operation=operation,
        inputs=(source,),
        shape=node.shape,
        scale=builder.number_format.fraction + builder.number_format.affine,
        leader=leader,
        leads=node.leads,
        neurons=node.shape,
        prototypes=node.prototypes,
        gates=(node.prototypes, *node.shape[1:]) if cells is None else (count_cells(cells),),
        bits=_compared_bits(builder, node.inputs[0], cells),
        pi=node.pi,
        cells=cells,
        where=None,
        affine=AlphaBeta(node.alpha, node.beta),
        affine_bits=builder.number_format.affine,
        affine_limit=builder.number_format.affine_limit,
        dropped=_dropped_bits(builder, node.inputs[0]),
    )
    builder.append(step, result_of=operation)
    builder.finish_pending()


def lower_gated(builder: ScheduleBuilder, operation: int, node: GatedActivation) -> None:
    """Add the step of an activation whose neurons have a gate each, or pass."""
    if not node.gated:
        builder.at[operation] = builder.result(node.inputs[0])
        return
    source = builder.at_activation_scale(node.inputs[0])
    everywhere, cells = node.gated == node.elements and node.cells is None, node.cells
    neurons = node.shape if everywhere else (node.gated,)
    step = GateStep(
        number=builder.next_number,
        operation=operation,
        inputs=(source,),
        shape=node.shape,
        scale=builder.number_format.fraction,
        leader=builder.next_number,
        leads=True,
        neurons=neurons,
        prototypes=neurons[0],
        gates=neurons if cells is None else (node.comparisons,),
        bits=_compared_bits(builder, node.inputs[0], cells),
        pi=None,
        cells=cells,
        where=None if everywhere else node.mask.flatten().nonzero().flatten(),
        affine=None,
        affine_bits=0,
        affine_limit=AFFINE_LIMITS[0],
        dropped=_dropped_bits(builder, node.inputs[0]),
    )
    builder.append(step, result_of=operation)
    builder.finish_pending()


def add_relu(builder: ScheduleBuilder, operation: int, source: ProtocolStep, pi: Tensor, bits: int) -> int:
    """Add a ReLU of a step's result, whose channels share the gates of the first ones by `pi`; returns its number."""
    prototypes = int(pi.max()) + 1
    step = GateStep(
        number=builder.next_number,
        operation=operation,
        inputs=(source.number,),
        shape=source.shape,
        scale=source.scale,
        leader=builder.next_number,
        leads=True,
        neurons=source.shape,
        prototypes=prototypes,
        gates=(prototypes, *source.shape[1:]),
        bits=bits,
        pi=pi,
        cells=None,
        where=None,
        affine=None,
        affine_bits=0,
        affine_limit=AFFINE_LIMITS[0],
    )
    return builder.append(step)


def _compared_bits(builder: ScheduleBuilder, operation: int, cells: Tensor | None) -> int:
    """Bits of compared results of an operation; sums need more, unless they are calibrated themselves."""
    most = 1 if cells is None or not len(cells) else int(cells.bincount().max())
    numbers = builder.number_format
    if numbers.compared is not None:
        return numbers.compared[operation] - numbers.dropped[operation]
    return numbers.ranges[operation] + (most - 1).bit_length()


def _dropped_bits(builder: ScheduleBuilder, operation: int) -> int:
    """Bits of compared results of an operation that comparisons do not see."""
    return builder.number_format.dropped[operation] if builder.number_format.compared is not None else 0
