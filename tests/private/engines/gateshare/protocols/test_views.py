"""What a party can compute from all that it has: true values, each less a mask. A mask used twice shows in differences.

With a dealer, and between the two parties alone. Messages alone would not show it, as they hold random shares; a party
can add its own.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepshare.private.engines.gateshare.client import ClientMaterial
from deepshare.private.engines.gateshare.crypto.dcf import Bits
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed
from deepshare.private.engines.gateshare.lot import Lot, LotBatch
from deepshare.private.engines.gateshare.preprocessing import together
from deepshare.private.engines.gateshare.protocols.comparison import unpack
from deepshare.private.engines.gateshare.protocols.gate import AlphaBeta, GateStep
from deepshare.private.engines.gateshare.protocols.linear import LinearStep
from deepshare.private.engines.gateshare.protocols.product import ProductStep
from deepshare.private.engines.gateshare.protocols.square import OpeningStep, SquareStep
from deepshare.private.ir.trace import translate
from tests.private.engines.gateshare.sessions import fix_randomness
from tests.private.engines.gateshare.trial import (
    SIZE,
    Run,
    Trial,
    chi_square,
    curved_resnet,
    excited,
    gated,
    shared_resnet,
)
from tests.private.engines.gateshare.two_party import InTheOpen, Told, TwoPartyTrial

IMAGES = 32
LOW, HIGH = 120.0, 440.0
# With fewer numbers the bytes are too few for their distribution to be seen.
FEWEST = 1024
# Pieces of lots that hold no words, and shares that follow from a gate's result and its messages.
OTHERS = ("leaves", "triples", "affine")
Hidden = dict[tuple[str, int], NDArray[np.uint64]]


@dataclass(eq=False)
class View:
    """Numbers of the images of one inference, each less a mask, and the opened gates of leaders, each less a bit."""

    server: Hidden
    client: Hidden
    gates: dict[int, Bits]


@pytest.fixture(
    scope="module",
    params=[
        *((network, True) for network in (shared_resnet, curved_resnet, excited)),
        *((network, False) for network in (shared_resnet, curved_resnet)),
    ],
    ids=lambda param: f"{param[0].__name__} {'dealt' if param[1] else 'without a dealer'}",
)
def views(request: pytest.FixtureRequest) -> list[View]:
    """Of two inferences of the same images, all alike."""
    network, dealt = request.param
    torch.manual_seed(71)
    with pytest.MonkeyPatch.context() as patch:
        fix_randomness(patch, "views")
        patch.setattr(together, "Encrypted", InTheOpen)
        patch.setattr(together, "Duplex", Told)
        trial = (Trial if dealt else TwoPartyTrial)(translate(network(), SIZE))
        return [view(trial, torch.zeros(IMAGES, *SIZE)) for _ in range(2)]


def view(trial: Trial, images: Tensor) -> View:
    if isinstance(trial, TwoPartyTrial):
        batch, material, mine = trial.prepared(IMAGES)
        view = seen(trial, trial.online(images, batch.parts, material, mine), batch, material, mine)
        # The server's share of what linear layers read is that tensor less the client's mask, which is its share.
        own = {(name, number): shares(batch, number, name) for number, name in batch.parts[0][0].pieces}
        early = {("tensor", step.number): trial.schedule.seen[step.number] for step in gate_steps(trial)}
        view.server.update(flat({key: x for key, x in (own | early).items() if key[0] not in OTHERS}))
        return view
    for_server, for_client = trial.dealer.deal(IMAGES)
    material = trial.client.preprocess(for_client, fresh_seed())
    mine = dict(trial.public.seen)
    run = trial.online(images, [(for_server, range(IMAGES))], material, mine)
    view = seen(trial, run, for_server, material, mine)
    dealt = {
        (name, number): torch.from_numpy(piece.view(np.int64))
        for (number, name), piece in for_server.pieces.items()
        if name in ("bit", "masked")
    }
    view.server.update(flat(dealt | masks_of_corrections(trial, for_client, mine)))
    return view


def shares(batch: LotBatch, number: int, name: str) -> Tensor:
    """Words of all lots."""
    return torch.from_numpy(np.concatenate([lot.pieces[number, name] for lot, _ in batch.parts]).view(np.int64))


def gate_steps(trial: Trial) -> list[GateStep]:
    return [step for step in trial.schedule.steps if isinstance(step, GateStep)]


def seen(trial: Trial, run: Run, for_server: Lot | LotBatch, material: ClientMaterial, mine: dict[int, Tensor]) -> View:
    """What both parties' messages and shares tell them."""
    gates = gate_steps(trial)
    theirs = trial.schedule.seen
    server = {("input", 0): theirs[0]}
    seen_by_client = {}
    for (number, name), opening in material.openings.items():
        server[name, number] = opening + theirs[number if name == "tensor" else trial.schedule.steps[number].inputs[0]]
    opened = {step.number: gates_of(run, step) for step in gates if step.leads}
    for step in gates:
        h, e_C = step.shaped(opened[step.leader]), material.openings[step.number, "neurons"]
        b_S, Ab_S = (
            for_server.share(*piece)
            for piece in (("bit", step.leader, step.gates), ("masked", step.number, step.neurons))
        )
        xb_S = Ab_S + (sent(run.from_server, step) + e_C) * step.per_neuron(b_S)
        u_S = gated(step.per_neuron(h), theirs[step.inputs[0]], xb_S)
        server["answer", step.number] = sent(run.from_client[::-1], step) + u_S
        seen_by_client["opening", step.number] = sent(run.from_server, step) + mine[step.inputs[0]]
    for one in trial.schedule.steps:
        if isinstance(one, OpeningStep):
            seen_by_client["opening", one.number] = sent(run.from_server, one) + mine[one.number]
        elif isinstance(one, SquareStep | ProductStep):
            server["answer", one.number] = theirs[one.number]
    return View(flat(server), flat(seen_by_client), opened)


def masks_of_corrections(trial: Trial, lot: Lot, shares: dict[int, Tensor]) -> dict[tuple[str, int], Tensor]:
    """What hides products of random numbers: used twice, it would give the server equations between true values."""
    found = {}
    for step in trial.schedule.steps:
        number = step.number
        if isinstance(step, LinearStep):
            parts = zip(trial.client.session[number], step.inputs, strict=True)
            products = [D(shares[source]) for D, source in parts]
            found["product", number] = shares[number] - torch.stack(products).sum(0)
        elif isinstance(step, GateStep):
            D, p = trial.client.session[number], lot.share("pad", number, step.neurons)
            assert isinstance(D, AlphaBeta)
            found["affine", number] = D.beta * shares[step.inputs[0]] - D.alpha * p - shares[number]
    return found


def sent(messages: list[tuple[int, bytes]], step: GateStep | OpeningStep) -> Tensor:
    data = next(data for number, data in messages if number == step.number)[: 8 * IMAGES * step.products]
    return torch.frombuffer(bytearray(data), dtype=torch.int64).view(IMAGES, *step.neurons)


def gates_of(run: Run, step: GateStep) -> Bits:
    count = IMAGES * step.comparisons
    *_, from_server = (data for number, data in run.from_server if number == step.number)
    *_, from_client = (data for number, data in run.from_client if number == step.number)
    from_client = from_client[8 * IMAGES * step.products :]
    one, other = (unpack(np.frombuffer(data, np.uint8), count) for data in (from_server, from_client))
    return one ^ other


def flat(values: dict[tuple[str, int], Tensor]) -> Hidden:
    found = {name: value.contiguous().numpy().view(np.uint64).ravel() for name, value in values.items()}
    return {name: value for name, value in found.items() if len(value) >= FEWEST}


def looks_uniform(numbers: NDArray[np.uint64]) -> bool:
    data = np.ascontiguousarray(numbers).view(np.uint8)
    return all(LOW < chi_square(plane) < HIGH for plane in (data, data[7::8]))


@pytest.mark.parametrize("party", ["server", "client"])
def test_no_mask_serves_two_purposes(views: list[View], party: str) -> None:
    """Also of tensors of other shapes: masks of one label begin alike."""
    held: Hidden = getattr(views[0], party)
    assert len(held) > (40 if party == "server" else 8)
    for (one, first), (other, second) in combinations(held.items(), 2):
        size = min(len(first), len(second))
        assert looks_uniform(first[:size] - second[:size]), (one, other)


@pytest.mark.parametrize("party", ["server", "client"])
def test_no_mask_serves_two_images(views: list[View], party: str) -> None:
    first, second = (getattr(one, party) for one in views)
    for name, numbers in first.items():
        assert looks_uniform(numbers - second[name]), name
        each = numbers.reshape(IMAGES, -1)
        assert looks_uniform((each[1:] - each[:-1]).ravel()), name


def is_fair(bits: Bits) -> bool:
    return abs(float(bits.mean()) - 0.5) < 6 * 0.5 / len(bits) ** 0.5


def test_no_bit_hides_two_gates(views: list[View]) -> None:
    first, second = (one.gates for one in views)
    assert len(first) > 1
    for number, bits in first.items():
        each = bits.reshape(IMAGES, -1)
        assert is_fair(bits) and is_fair(bits ^ second[number]) and is_fair((each[1:] ^ each[:-1]).ravel()), number
    for one, other in combinations(first, 2):
        size = min(len(first[one]), len(first[other]))
        assert is_fair(first[one][:size] ^ first[other][:size]), (one, other)
