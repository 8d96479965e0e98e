"""Bijection without a dealer: what a party sees fits any secret of the other, comparisons included.

Encryption and oblivious transfer hide the other party's factors and choices computationally, which no such test can
show; here they give what ideal ones would.
"""

import queue
import random
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepshare.private.engines.gateshare import reference
from deepshare.private.engines.gateshare.client import ClientMaterial
from deepshare.private.engines.gateshare.cost_model import LayerMeter
from deepshare.private.engines.gateshare.crypto.dcf import Bits
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.lot import Lot
from deepshare.private.engines.gateshare.preprocessing import together
from deepshare.private.engines.gateshare.protocols import gate, local
from deepshare.private.engines.gateshare.protocols.carry import Carries, Digits, levels
from deepshare.private.engines.gateshare.protocols.comparison import unpack
from deepshare.private.engines.gateshare.protocols.gate import AlphaBeta, GateStep
from deepshare.private.engines.gateshare.protocols.linear import LinearStep
from deepshare.private.engines.gateshare.server import ServerParty
from deepshare.private.ir.trace import translate
from tests.private.engines.gateshare.protocols.explanations import (
    IMAGES,
    Explained,
    ForClient,
    ForServer,
    Replay,
    World,
    other_model,
)
from tests.private.engines.gateshare.trial import SIZE, gated, shared_resnet, truncated_shares, watched
from tests.private.engines.gateshare.two_party import InTheOpen, Told, TwoPartyTrial

Script = list[tuple[str, bytes]]


@dataclass(eq=False)
class Played:
    """A comparison whose messages and result are as they were."""

    script: Script
    bits: Bits

    def share(self, eps: Any, party: str, wire: Any, number: int) -> Bits:
        for direction, data in self.script:
            if direction == "out":
                wire.send(number, data)
            else:
                assert wire.receive(number, len(data)).tobytes() == data
        return self.bits


class TogetherWorld(World):
    """A run without a dealer; both lots have several images."""

    def bits(self, step: GateStep) -> tuple[Bits, Bits]:
        """h_S is the last frame of the server for a leader, after those of the carries."""
        count = step.elements * IMAGES * 8
        from_server = [data for number, data in self.run.from_server if number == step.number][-1]
        from_client = [data for number, data in self.run.from_client if number == step.number][-1][count:]
        return self._unpacked(from_server, step), self._unpacked(from_client, step)

    def numbers(self, messages: list[tuple[int, bytes]], number: int, shape: Any) -> Tensor:
        """The openings of the server come first, the numbers of the client last."""
        if messages is self.run.from_client:
            messages = [message for message in messages if message[0] == number][-1:]
        return super().numbers(messages, number, shape)

    def script(self, step: GateStep, party: str) -> Script:
        """The frames of the carries of a leader, as a party sends and receives them."""
        server = [data for number, data in self.run.from_server if number == step.number][1:-1]
        client = [data for number, data in self.run.from_client if number == step.number][:-1]
        leaves, *levels = server
        assert len(levels) == len(client) > 0
        ends = {"server": ("out", "in"), "client": ("in", "out")}[party]
        found = [(ends[0], leaves)]
        for theirs, ours in zip(levels, client, strict=True):
            pair = [(ends[0], theirs), (ends[1], ours)]
            found += pair if party == "server" else pair[::-1]
        return found


def joined(lots: Any) -> Any:
    """Lots of one image each as one."""

    class Joined(Lot):
        def share(self, name: str, number: int, shape: Any) -> Tensor:
            found: Tensor = lots.share(name, number, shape)
            return found

        mask = correction = share

    return Joined(lots.parts[0][0].id, bytes(32), IMAGES)


@pytest.fixture(scope="module")
def world() -> TogetherWorld:
    torch.manual_seed(7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(together, "Encrypted", InTheOpen)
        patch.setattr(together, "Duplex", Told)
        trial = TwoPartyTrial(translate(shared_resnet(), SIZE))
        images = torch.randn(IMAGES, *SIZE)
        for_server, for_client = trial.made_lots(IMAGES)
    materials, seen = [], []
    for lot, _ in for_client.parts:
        materials.append(trial.client.preprocess(lot, fresh_seed()))
        seen.append(dict(trial.public.seen))
    mine = {number: torch.cat([one[number] for one in seen]) for number in seen[0]}
    material = ClientMaterial.concat(materials)
    run = trial.online(images, for_server.parts, material, mine)
    return TogetherWorld(
        trial, images, joined(for_server), joined(for_client), material.openings, run, dict(trial.schedule.seen), mine
    )


@pytest.fixture(autouse=True)
def played_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(number: int, bits: int, own: Tensor, lot: Any, party: str) -> Any:
        return lot.parts[0][0].ideals[number]

    monkeypatch.setattr(gate, "read_carries", read)


class ForClientTogether(ForClient):
    """Finds the client's masks that explain another image: c = W a, and w = alpha p - beta a_C."""

    world: TogetherWorld

    def linear(self, step: LinearStep, inputs: list[Tensor]) -> Tensor:
        products = self.world.trial.server.session[step.number]
        c_C = -self.world.server_lot.share("product", step.number, step.shape)
        for W, term, source, t_C in zip(products, step.terms, step.inputs, inputs, strict=True):
            a = t_C
            if not term.early:
                a = self.lot.values["tensor", source] = t_C - self.world.openings[source, "tensor"]
            c_C = c_C + W(a)
        self.lot.values["product", step.number] = c_C
        return c_C

    def gate(self, step: GateStep, x_C: Tensor) -> Tensor:
        theirs, found, number = self.world.server_lot, self.lot.values, step.number
        e_C, h = self.world.openings[number, "neurons"], self.world.h(step.leader)
        a_C, a_S = x_C - e_C, theirs.share("neurons", number, step.neurons)
        x_S = self.world.server_shares[step.inputs[0]]
        if step.leads:
            g = (x_S + x_C)[:, : step.prototypes] >= 0
            self.b[number] = (g ^ h).long()
            found["bit", number] = self.b[number] - theirs.share("bit", number, step.gates)
            ideals: Any = self.lot.ideals
            ideals[number] = Played(self.world.script(step, "client"), self.world.bits(step)[1])
        Ab_C = (a_S + a_C) * step.per_neuron(self.b[step.leader]) - theirs.share("masked", number, step.neurons)
        xb_C = (x_S - a_S + e_C) * step.per_neuron(found["bit", step.leader]) + Ab_C
        sent = self.world.numbers(self.world.run.from_client, number, step.neurons)
        p = sent - gated(step.per_neuron(h), x_C, xb_C)
        affine: AlphaBeta = self.world.trial.server.session[number]
        v_C = affine.alpha * p - affine.beta * a_C - theirs.share("affine", number, step.neurons)
        found["neurons", number], found["masked", number] = a_C, Ab_C
        found["pad", number], found["affine", number] = p, v_C
        return -v_C


class ForServerTogether(ForServer):
    """Finds the server's masks that explain another model."""

    world: TogetherWorld

    def __init__(self, world: TogetherWorld, program: Any) -> None:
        self.world, self.lot, self.b, self.L = world, Explained(world.server_lot), {}, {}
        self.steps = watched(program, world.trial.number_format, dealt=False)
        self.server = ServerParty(self.steps, b"")
        assert list(self.server.masked_weights()) == []

    def linear(self, step: LinearStep, inputs: list[Tensor]) -> Tensor:
        theirs = self.world.client_lot
        c_S, y_S = -theirs.share("product", step.number, step.shape), step.bias()
        for W, term, source, t_S in zip(self.server.session[step.number], step.terms, step.inputs, inputs, strict=True):
            if term.early:
                c_S, y_S = c_S + W(self.world.client_shares[source]), y_S + W(t_S)
                continue
            c_S = c_S + W(theirs.share("tensor", source, term.takes))
            y_S = y_S + W(t_S + self.world.openings[source, "tensor"])
        self.lot.values["product", step.number] = c_S
        return y_S + c_S

    def gate(self, step: GateStep, x_S: Tensor) -> Tensor:
        number = step.number
        self.L[number] = self.server.session[number]
        y_S = super().gate(step, x_S)
        if step.leads:
            ideals: Any = self.lot.ideals
            ideals[number] = Played(self.world.script(step, "server"), self.world.bits(step)[0])
        return y_S


def test_what_the_server_sees_fits_another_image(world: TogetherWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    images = 2 * torch.randn(IMAGES, *SIZE)
    finder, client_party = ForClientTogether(world, images), world.trial.client
    lot: Any = finder.find()
    monkeypatch.setattr(local, "mask", lambda seed, shape: finder.x_C)
    material = client_party.preprocess(lot, bytes(32))
    shares = truncated_shares(world.trial.schedule, world.trial.public.seen)
    assert material.openings.keys() == world.openings.keys()
    for piece, tensor in material.openings.items():
        assert torch.equal(tensor, world.openings[piece]), piece
    client = Replay(world.run.from_server)
    logits = client_party.infer(images, material, client, LayerMeter([client], "client_bytes", 99))
    assert client.messages == world.run.from_client
    assert torch.equal(logits - world.run.noise, reference.evaluate(world.trial.schedule, images, shares))
    assert not torch.equal(logits, world.run.logits)


def test_what_the_client_sees_but_the_logits_fits_another_model(world: TogetherWorld) -> None:
    finder = ForServerTogether(world, other_model(world.trial.program))
    lot: Any = finder.find()
    material = finder.server.preprocess([(lot, range(IMAGES))], world.openings)
    server = Replay(world.run.from_client)
    noise = finder.server.infer(material, server, LayerMeter([server], "server_bytes", 99))
    assert server.messages[:-1] == world.run.from_server[:-1]
    logits = finder.steps.seen[finder.steps.output] + world.client_shares[finder.steps.output]
    shares = truncated_shares(finder.steps, world.client_shares)
    assert torch.equal(logits, reference.evaluate(finder.steps, world.images, shares))
    assert not torch.equal(logits + noise, world.run.logits)


class Seen:
    """A wire that plays what the other party said, and keeps what this one says."""

    def __init__(self, incoming: list[bytes]) -> None:
        self.incoming, self.sent = iter(incoming), list[bytes]()

    def send(self, step: int, *parts: NDArray[Any] | bytes) -> None:
        self.sent.append(b"".join(part if isinstance(part, bytes) else part.tobytes() for part in parts))

    def receive(self, step: int, size: int) -> NDArray[np.uint8]:
        data = next(self.incoming)
        assert len(data) == size
        return np.frombuffer(data, np.uint8)


BITS, GATES = 37, 50


@pytest.fixture(autouse=True)
def _drawn_by_chance(chance: random.Random) -> None:
    torch.manual_seed(chance.getrandbits(63))


def words(bits: int, *shape: int) -> Tensor:
    """Random numbers of so many bits."""
    return torch.randint(1 << bits, shape)


def ideal_carries(z_C: Tensor) -> tuple[Carries, Carries]:
    """Both parties' halves as ideal transfers give them."""
    digits = -(-(BITS - 1) // 4)
    pads = words(32, 1, GATES, digits).numpy().astype(np.uint32)
    low = (((1 << (BITS - 1)) - 1) - (z_C.numpy() & ((1 << (BITS - 1)) - 1)))[..., None]
    c = (low >> (4 * np.arange(digits))) & 15
    own = torch.from_numpy(((pads >> (2 * c).astype(np.uint32)) & 3).astype(np.uint8))
    A, B, B2 = (words(1, 2, 1, GATES, digits - 1) for _ in range(3))
    AB, AB2 = (words(1, 1, GATES, digits - 1) for _ in range(2))
    products = [AB, (A[0] ^ A[1]) & (B[0] ^ B[1]) ^ AB], [AB2, (A[0] ^ A[1]) & (B2[0] ^ B2[1]) ^ AB2]
    triples = [
        (A[i] + 2 * B[i] + 4 * B2[i] + 8 * products[0][i] + 16 * products[1][i]).to(torch.uint8) for i in range(2)
    ]
    leaves = torch.from_numpy(pads.view(np.int32))
    chosen = words(2, 1, GATES, digits).to(torch.uint8)
    coins = [words(1, 1, GATES).bool() for _ in range(2)]
    server = Carries(
        bits=BITS,
        own=torch.zeros(1, GATES, dtype=torch.int64),
        flips=coins[0],
        leaves=leaves,
        chosen=chosen,
        triples=triples[0],
    )
    client = Carries(bits=BITS, own=z_C, flips=coins[1], leaves=own, chosen=None, triples=triples[1])
    return server, client


def play(server: Carries, client: Carries, z_S: Tensor) -> tuple[Bits, Bits, list[bytes], list[bytes]]:
    """Both shares of h, and all messages, from parties that wait for each other."""
    to_client: queue.Queue[bytes] = queue.Queue()
    to_server: queue.Queue[bytes] = queue.Queue()

    class Pipe(Seen):
        def __init__(self, out: "queue.Queue[bytes]", inward: "queue.Queue[bytes]") -> None:
            super().__init__([])
            self.out, self.incoming = out, iter(lambda: inward.get(timeout=30), b"never")

        def send(self, step: int, *parts: NDArray[Any] | bytes) -> None:
            super().send(step, *parts)
            self.out.put(self.sent[-1])

    ends, found = (Pipe(to_client, to_server), Pipe(to_server, to_client)), dict[str, Bits]()
    thread = threading.Thread(target=lambda: found.update(server=server.share(z_S.view(-1), "server", ends[0], 1)))
    thread.start()
    found["client"] = client.share(z_S.view(-1), "client", ends[1], 1)
    thread.join()
    return found["server"], found["client"], ends[0].sent, ends[1].sent


def explained_triples(
    G: Digits, P: Digits, mine: list[bytes], theirs: list[bytes], other: Tensor, party: str
) -> tuple[Tensor, Digits]:
    """Triples of a party with which it says the same for other G and P, given the other party's; and its last G."""
    found, others = [], other.reshape(GATES, -1).numpy().T
    for merges, one, two in zip(levels(len(G)), mine, theirs, strict=True):
        said, heard = (
            unpack(np.frombuffer(data, np.uint8), (3 * merges - 1) * GATES).view(np.uint8).reshape(-1, GATES)
            for data in (one, two)
        )
        A_o, B_o, B2_o, AB_o, AB2_o = (others[:merges] >> place & 1 for place in range(5))
        others = others[merges:]
        high, low, rest = slice(1, 2 * merges, 2), slice(0, 2 * merges, 2), slice(2 * merges, None)
        masked = np.split(said, [merges, 2 * merges])
        A, B = P[high] ^ masked[0], G[low] ^ masked[1]
        B2 = np.concatenate([words(1, 1, GATES).numpy().astype(np.uint8), P[low][1:] ^ masked[2]])
        AB, AB2 = (A ^ A_o) & (B ^ B_o) ^ AB_o, (A ^ A_o) & (B2 ^ B2_o) ^ AB2_o
        found.append(A + 2 * B + 4 * B2 + 8 * AB + 16 * AB2)
        p_hi, g_lo, p_lo = np.split(said ^ heard, [merges, 2 * merges])
        g = G[high] ^ AB ^ (p_hi & B) ^ (g_lo & A)
        p = (AB2 ^ (p_hi & B2))[1:] ^ (p_lo & A[1:])
        if party == "server":
            g, p = g ^ (p_hi & g_lo), p ^ (p_hi[1:] & p_lo)
        G, P = np.concatenate([g, G[rest]]), np.concatenate([P[:1], p, P[rest]])
    return torch.from_numpy(np.concatenate(found).T.copy()).view(1, GATES, -1), G[0]


def values_of(digits: NDArray[np.int64]) -> NDArray[np.int64]:
    """[s > v] and [s = v] for all values v of a digit, in two bits: (..., 16)."""
    v = np.arange(16)
    return (digits[..., None] > v) + 2 * (digits[..., None] == v)


def digits_of(numbers: Tensor) -> NDArray[np.int64]:
    """Digits of the low bits, (gates, digits)."""
    low = numbers.view(-1, 1).numpy() & ((1 << (BITS - 1)) - 1)
    found: NDArray[np.int64] = low >> (4 * np.arange(-(-(BITS - 1) // 4))) & 15
    return found


def tops(numbers: Tensor) -> Bits:
    """The top bits."""
    return (numbers.view(-1) >> (BITS - 1) & 1).bool().numpy()


def test_what_the_client_sees_of_a_comparison_fits_another_number_of_the_server() -> None:
    z_S, z_C, other = (words(BITS, 1, GATES) for _ in range(3))
    server, client = ideal_carries(z_C)
    h_S, h_C, from_server, from_client = play(server, client, z_S)
    x = (z_S + z_C) & ((1 << BITS) - 1)
    b = (server.flips ^ client.flips).view(-1).numpy()
    assert np.array_equal(h_S ^ h_C ^ b, ~tops(x))
    # Shares of digits such that the client has what it had, and pads that it lacks take up the rest.
    c, s = digits_of(~z_C), digits_of(other)
    sent = np.frombuffer(from_server[0], np.uint32).reshape(GATES, -1)
    message = sent[..., None] >> (2 * np.arange(16, dtype=np.uint32)) & 3
    two = np.take_along_axis(message, c[..., None], -1)[..., 0] ^ client.leaves.view(GATES, -1).numpy()
    chosen = two ^ np.take_along_axis(values_of(s), c[..., None], -1)[..., 0]
    pads = (message ^ values_of(s) ^ chosen[..., None]).astype(np.uint64)
    leaves = (pads << (2 * np.arange(16, dtype=np.uint64))).sum(-1).astype(np.uint32).view(np.int32)
    G, P = ((chosen.T >> place & 1).astype(np.uint8) for place in range(2))
    triples, last = explained_triples(G, P, from_server[1:], from_client, client.triples, "server")
    explained = Carries(
        bits=BITS,
        own=server.own,
        flips=torch.from_numpy(h_S ^ ~tops(other) ^ last.astype(np.bool_)).view(1, GATES),
        leaves=torch.from_numpy(leaves).view(1, GATES, -1),
        chosen=torch.from_numpy(chosen.astype(np.uint8)).view(1, GATES, -1),
        triples=triples,
    )
    wire = Seen(from_client)
    assert np.array_equal(explained.share(other.view(-1), "server", wire, 1), h_S)
    assert wire.sent == from_server
    # The client's pads are among those found, and with the client's half the comparison is that of the other number.
    assert np.array_equal(np.take_along_axis(pads, c[..., None], -1)[..., 0], client.leaves.view(GATES, -1).numpy())
    flips = (explained.flips ^ client.flips).view(-1).numpy()
    assert np.array_equal(h_S ^ h_C ^ flips, ~tops((other + z_C) & ((1 << BITS) - 1)))
    assert not np.array_equal(flips, b)


def test_what_the_server_sees_of_a_comparison_fits_another_number_of_the_client() -> None:
    z_S, z_C, other = (words(BITS, 1, GATES) for _ in range(3))
    server, client = ideal_carries(z_C)
    h_S, h_C, from_server, from_client = play(server, client, z_S)
    c, s = digits_of(~other), digits_of(z_S)
    pads = server.leaves.view(GATES, -1).numpy().view(np.uint32)
    own = (pads >> (2 * c).astype(np.uint32) & 3).astype(np.uint8)
    assert server.chosen is not None
    two = np.take_along_axis(values_of(s), c[..., None], -1)[..., 0] ^ server.chosen.view(GATES, -1).numpy()
    G, P = ((two.T >> place & 1).astype(np.uint8) for place in range(2))
    triples, last = explained_triples(G, P, from_client, from_server[1:], server.triples, "client")
    explained = Carries(
        bits=BITS,
        own=other,
        flips=torch.from_numpy(h_C ^ tops(other) ^ last.astype(np.bool_)).view(1, GATES),
        leaves=torch.from_numpy(own).view(1, GATES, -1),
        chosen=None,
        triples=triples,
    )
    wire = Seen(from_server)
    assert np.array_equal(explained.share(other.view(-1), "client", wire, 1), h_C)
    assert wire.sent == from_client
    flips = (explained.flips ^ server.flips).view(-1).numpy()
    assert np.array_equal(h_S ^ h_C ^ flips, ~tops((other + z_S) & ((1 << BITS) - 1)))
