"""Products of numbers under encryption: their parts, and what is refused."""

import importlib.metadata
import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.homomorphic import (
    MOST_PRODUCTS,
    SPU_VERSION,
    check_installed,
    parts,
    products_cost,
)
from deepshare.private.engines.gateshare.lot import Holder
from deepshare.private.runtime.outcome import Part
from tests.private.engines.gateshare.crypto.encrypting_process import factors

ROOT = Path(__file__).parents[5]


def test_many_products_are_made_in_parts() -> None:
    assert [part.stop - part.start for part in parts(2 * MOST_PRODUCTS + 5)] == [MOST_PRODUCTS, MOST_PRODUCTS, 5]
    # Of a first batch of triples sixteen are used up by the trial; another is made where they do not suffice.
    few, more = products_cost([4000]), products_cost([4000, 4000])
    assert few == Part(server_bytes=16 * 4000, client_bytes=16 * 4000)
    assert more.server_bytes > 16 * 8000 and more.client_bytes > 16 * 8000


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
def test_ciphertexts_that_are_cut_end_in_one_line_on_both_sides(party: Holder, damage: str) -> None:
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
    if all(line.startswith("share") for line in said):
        server, client = (torch.frombuffer(bytearray.fromhex(line.split()[1]), dtype=torch.int64) for line in said)
        own = factors()
        right = torch.equal(server + client, own["client"] * own["server"])
        # What comes after a ciphertext is not read. One that was changed may be that of another number: nobody can
        # tell, and parties that follow the protocol do not change any.
        assert damage != "short" and right == (damage != "changed")
        return
    assert damage not in ("none", "long")
    for line in said:
        assert line.count("\n") == 1 and line.split()[0] in ("EngineError", "ConnectionError"), line
    assert any("a product under encryption failed (" in line for line in said)
    assert any("start both parties again" in line for line in said)
