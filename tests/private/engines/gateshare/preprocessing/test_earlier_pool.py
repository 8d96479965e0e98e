"""A pool that an earlier version dealt, `earlier_pool`, still loads and gives the same logits to the last bit.

It was dealt before the package was cut by protocol. The logits are those of version 2 of the protocol, in which the
client multiplies masks alone: other shares round other numbers up, which changed each logit by less than 2^-15. The
network has steps of every kind but concatenation;
its weights are fractions that every machine computes alike.
"""

import hashlib
import os
import shutil
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from deepshare import plan, share
from deepshare.methods.gated_polynomial import GatedPolynomial
from deepshare.private.engines.gateshare import main
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.crypto.ring import fresh_seed, mask
from deepshare.private.engines.gateshare.fixedpoint import NumberFormat
from deepshare.private.engines.gateshare.lot import Holder
from deepshare.private.engines.gateshare.preprocessing.dealer import LotDealer
from deepshare.private.engines.gateshare.protocols import local
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import Role, Task
from deepshare.private.runtime.outcome import Outcome
from deepshare.private.runtime.party import free_ports
from tests.private.engines.gateshare.sessions import fix_randomness

POOL = Path(__file__).parent / "earlier_pool"
SIZE = (2, 4, 4)
LOGITS = (
    ("0x1.fc9718c000000p-4", "-0x1.0fda544000000p-4", "-0x1.5ef245a000000p-2"),
    ("0x1.8c172e6000000p-3", "-0x1.28ff260000000p-3", "-0x1.4d92365000000p-2"),
)


def fractions(count: int) -> Tensor:
    return ((torch.arange(count) * 37 + 11) % 64 - 32).double() / 64


class Small(nn.Module):
    """A leader, a follower, and polynomials beside gates."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.act1, self.act2 = nn.ReLU(), nn.ReLU()
        self.poly: nn.Module = nn.Identity()
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.first(x))
        x = self.poly(self.act2(self.second(x)) + x)
        return self.last(x.mean((2, 3)))


@pytest.fixture(scope="module")
def program() -> Program:
    model = Small()
    shared = share(model, plan(model, SIZE, 24), start="uniform").eval()
    polynomials = GatedPolynomial((4, 4, 4), [nn.Parameter(torch.zeros(4, 1, 1)) for _ in range(3)])
    shared.poly = polynomials
    with torch.no_grad():
        for parameter in shared.parameters():
            parameter.copy_(fractions(parameter.numel()).view(parameter.shape))
    polynomials.set_mask((torch.arange(64) % 5 == 0).view(4, 4, 4))
    return translate(shared, SIZE)


def test_it_gives_the_same_logits(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(POOL, tmp_path, dirs_exist_ok=True)
    for party in ("server", "client"):
        (tmp_path / party / "spent").touch()
    fix_randomness(monkeypatch, "earlier pool")
    # The noise of that version, from the same randomness: uniform.
    monkeypatch.setattr(
        local, "logit_noise", lambda shape, bits, scale: mask(fresh_seed(), shape) >> (63 - bits - scale)
    )
    images = 4 * fractions(64).view(2, *SIZE)
    roles: tuple[Role, Role] = ("server", "client")
    addresses = dict(zip(roles, (f"127.0.0.1:{port}" for port in free_ports("127.0.0.1", 2)), strict=True))
    found: dict[Role, Outcome] = {}

    def run(role: Role) -> None:
        task = Task(
            role=role,
            program=program if role == "server" else program.outline(),
            addresses=addresses,
            images=images if role == "client" else None,
            count=len(images),
            options={"dealer": "pool"},
            extras={"pool": tmp_path / role},
        )
        found[role] = main.run(task, lambda: None)

    threads = [threading.Thread(target=run, args=(role,), name=role) for role in roles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logits = found["client"].logits
    assert logits is not None and logits.tolist() == [[float.fromhex(value) for value in row] for row in LOGITS]
    assert found["client"].offline.client_bytes == 6720


@pytest.mark.parametrize(
    ("party", "digest"),
    [("server", "88cf817efb2660661283dab80dcedf5c"), ("client", "8000d47182c8d66c36903da55cb4a3ec")],
)
def test_the_same_seeds_deal_the_same_bytes(
    program: Program, party: Holder, digest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(1 << 10))
    monkeypatch.setattr(os, "urandom", lambda size: hashlib.shake_256(b"%d" % next(calls)).digest(size))
    steps = schedule(program.outline(), NumberFormat.usual(program))
    lots = dict(zip(("server", "client"), LotDealer(steps).deal(3), strict=True))
    found = hashlib.sha256(lots[party].id + lots[party].seed)
    for piece in steps.dealt_bytes(3, party):
        found.update(f"{piece} ".encode() + lots[party].pieces[piece].tobytes())
    assert found.hexdigest()[:32] == digest
