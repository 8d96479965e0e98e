"""Products of groups: how they are cut, and what is refused. The encryption itself is in `test_two_party.py`."""

import importlib.metadata
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.homomorphic import SPU_VERSION, GroupedSize, check_installed
from deepshare.private.engines.gateshare.lot import Holder
from deepshare.private.transport.channel import Channel
from deepshare.private.transport.duplex import Duplex
from tests.private.engines.gateshare.crypto.encrypting_process import SIZE, factors
from tests.private.engines.gateshare.crypto.two_ends import at_both_ends, well
from tests.private.engines.gateshare.two_party import InTheOpen

ROOT = Path(__file__).parents[5]


@pytest.mark.parametrize(
    ("size", "products"),
    [
        (GroupedSize(1, 1024, 144, 16), [(1024, 144, 16)]),
        (GroupedSize(16, 1024, 2, 1), [(1024, 32, 16)]),
        (GroupedSize(20, 1024, 2, 1), [(1024, 32, 16), (1024, 8, 4)]),
        (GroupedSize(512, 16, 2, 1), [(16, 1024, 512)]),
        (GroupedSize(4, 1024, 144, 16), [(1024, 144, 16)] * 4),
        (GroupedSize(3, 9000, 9, 1), [(9000, 32, 3)]),
        (GroupedSize(200_000, 1, 1, 1), [(1, 1, 1)] * 2),
    ],
)
def test_groups_go_together_as_far_as_it_saves(size: GroupedSize, products: list[tuple[int, int, int]]) -> None:
    assert [one for _, one in size.products()] == products
    assert [group for groups, _ in size.products() for group in range(size.groups)[groups]] == list(range(size.groups))


def test_every_group_is_multiplied_by_its_own_matrix() -> None:
    size = GroupedSize(20, 1000, 3, 2)
    A, W = torch.randint(-(2**63), 2**63 - 1, (20, 1000, 3)), torch.randint(-(2**20), 2**20, (20, 3, 2))

    def multiply(party: Holder, channel: Channel) -> Any:
        with Duplex(channel, 0) as duplex:
            encrypted, own = InTheOpen.begin(duplex, party), W if party == "server" else A
            return torch.cat([encrypted.groups(own[groups], one) for groups, one in size.products()])

    ends = well(at_both_ends(lambda channel: multiply("server", channel), lambda channel: multiply("client", channel)))
    assert torch.equal(ends.results[0] + ends.results[1], A @ W)


def test_single_numbers_are_multiplied_element_by_element() -> None:
    A, W = (torch.randint(-(2**63), 2**63 - 1, (1000, 1, 1)) for _ in range(2))

    def multiply(party: Holder, channel: Channel) -> Any:
        with Duplex(channel, 0) as duplex:
            return InTheOpen.begin(duplex, party).groups(W if party == "server" else A, (1, 1, 1))

    ends = well(at_both_ends(lambda channel: multiply("server", channel), lambda channel: multiply("client", channel)))
    assert torch.equal(ends.results[0] + ends.results[1], A * W)


def test_without_the_one_spu_whose_shares_are_known_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.9.5")
    with pytest.raises(EngineError, match=rf"made for spu {SPU_VERSION}, not 0\.9\.5: install it with pip install"):
        check_installed()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r"need SPU: install it with pip install .*Python 3\.11 on Linux"):
        check_installed()


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["none", "short", "long", "changed"])
@pytest.mark.parametrize("party", ["server", "client"])
def test_ciphertexts_that_are_cut_or_changed_end_in_one_line_on_both_sides(party: Holder, damage: str) -> None:
    pytest.importorskip("spu", reason="spu is not installed")
    ends, parties = socket.socketpair(), ("server", "client")
    processes = []
    for role, end in zip(parties, ends, strict=True):
        module = "tests.private.engines.gateshare.crypto.encrypting_process"
        command = [sys.executable, "-m", module, role, str(end.fileno()), damage if role == party else "none"]
        env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        processes.append(
            subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, pass_fds=[end.fileno()])
        )
        end.close()
    said = [process.communicate(timeout=120)[0] for process in processes]
    rows, _, outputs = SIZE
    if all(line.startswith("share") for line in said):
        server, client = (torch.frombuffer(bytearray.fromhex(line.split()[1]), dtype=torch.int64) for line in said)
        own = factors()
        right = torch.equal((server + client).view(rows, outputs), own["client"] @ own["server"])
        assert right and damage in ("none", "long")  # what comes after a ciphertext is not read
        return
    assert damage not in ("none", "long")
    for line in said:
        assert line.count("\n") == 1 and line.split()[0] in ("EngineError", "ConnectionError"), line
    assert any("a product under encryption failed (" in line for line in said)
    assert any("start both parties again" in line for line in said)
