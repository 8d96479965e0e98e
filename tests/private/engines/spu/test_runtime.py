"""Connections of real processes: with and without certificates, and to nobody."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from queue import Queue
from socket import socket

import pytest
import torch

pytest.importorskip("spu", reason="engine spu is not installed")

from deepshare.private.remote.tls import make_keys
from deepshare.private.runtime.engine import Role, Task
from deepshare.private.runtime.outcome import Outcome
from deepshare.private.runtime.party import Event, ProcessParty
from deepshare.private.transport.tls import tls_of
from tests.private.engines.spu.programs import varied

ROLES: tuple[Role, ...] = ("server", "client")

# One party that gives up soon, and says why.
PARTY = """
import os, sys
from pathlib import Path
from deepshare.errors import EngineError
from deepshare.private.runtime.engine import Task
from deepshare.private.transport.tls import tls_of
from deepshare.private.ir.program import Program
from deepshare.private.engines.spu import runtime
from deepshare.private.engines.spu.meter import LogMeter

role, server, client, keys, folder = sys.argv[1:]
runtime.CONNECT_SECONDS = 6
task = Task(
    role=role,
    program=Program(()),
    addresses={"server": server, "client": client},
    count=1,
    tls=tls_of(Path(keys)) if keys else None,
)
try:
    runtime.connect(task, LogMeter(Path(folder), runtime.RANKS[role]))
    print("connected")
except EngineError as error:
    print(error)
sys.stdout.flush()
os._exit(0)
"""


def free_addresses() -> list[str]:
    with socket() as first, socket() as second:
        for one in (first, second):
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in (first, second)]


def party(role: Role, addresses: list[str], keys: Path | None, folder: Path) -> "subprocess.Popen[str]":
    folder.mkdir(parents=True)
    arguments = [role, *addresses, str(keys or ""), str(folder)]
    return subprocess.Popen(
        [sys.executable, "-c", PARTY, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def said(process: "subprocess.Popen[str]") -> str:
    return process.communicate(timeout=60)[0].strip()


def test_parties_with_certificates_of_one_authority_run(tmp_path: Path) -> None:
    make_keys(tmp_path, ["127.0.0.1"])
    program = varied("masks")
    images = torch.randn(1, *program.input_size)
    addresses = dict(zip(ROLES, free_addresses(), strict=True))
    events: Queue[Event] = Queue()
    outcomes: dict[Role, Outcome] = {}
    with ExitStack() as stack:
        for role in ROLES:
            tls = tls_of(tmp_path / role)
            own = (program, None) if role == "server" else (program.outline(), images)
            task = Task(role=role, program=own[0], addresses=addresses, images=own[1], count=1, tls=tls)
            running = ProcessParty("spu-semi2k", task, 1)
            running.start(events.put)
            stack.callback(running.stop)
        while len(outcomes) < 2:
            role, kind, value = events.get(timeout=100)
            assert kind in ("ready", "done"), value
            if kind == "done":
                outcomes[role] = value
    logits = outcomes["client"].logits
    assert outcomes["server"].logits is None and logits is not None
    torch.testing.assert_close(logits.double(), program.evaluate(images), rtol=0, atol=1e-2)


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        make_keys(tmp_path / name, ["127.0.0.1"])
    addresses = free_addresses()
    server = party("server", addresses, tmp_path / "ours/server", tmp_path / "server")
    client = party("client", addresses, tmp_path / "theirs/client", tmp_path / "client")
    for process in (server, client):
        assert "refuse each other: give both certificates of one authority" in said(process)


def test_nobody_there_and_a_port_that_is_taken(tmp_path: Path) -> None:
    addresses = free_addresses()
    alone = party("server", addresses, None, tmp_path / "alone")
    with socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        late = party("client", [addresses[0], address], None, tmp_path / "late")
        assert said(late) == f"the client cannot listen at {address}: is the port taken?"
    assert said(alone) == (f"the client at {addresses[1]} was not there within 6 s: start it, and let its port through")
