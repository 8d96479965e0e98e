import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from deepshare.errors import EngineError
from deepshare.private.remote.client import Server, connected
from tests.private.remote.attacked import SIZE, deal
from tests.private.remote.running import Running, about


@pytest.mark.parametrize("server", ["localhost", "localhost:abc", "localhost:99999", "[::1", ":8443"])
def test_an_address_that_is_none(server: str) -> None:
    with pytest.raises(EngineError, match="is no address of a server: give HOST:PORT"):
        connected(Server(address=server, engine="crypten")).__enter__()


def test_another_machine_without_tls_and_nothing_that_decides_are_refused() -> None:
    with pytest.raises(EngineError, match=r"192\.0\.2\.7 is another machine, and without TLS .* --insecure"):
        Server(address="192.0.2.7:8443", engine="gateshare").check()
    Server(address="192.0.2.7:8443", engine="gateshare", insecure=True).check()
    for here in ("127.0.0.1:8443", "localhost:8443", "[::1]:8443"):
        Server(address=here, engine="gateshare").check()
    with pytest.raises(EngineError, match="give your pool with --pool, or an engine with --engine"):
        Server(address="localhost:8443").check()


# Of the package a client imports none of these, nor any library that only training or another engine needs.
ABSENT = {"methods", "sharing", "study", "training", "zoo"}
LIBRARIES = {"crypten", "jax", "kornia", "lightning_fabric", "matplotlib", "onnx", "rich", "safetensors", "spu", "timm"}
LIBRARIES |= {"torchvision", "scipy", "starlette", "uvicorn"}


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[str], str]]:
    """Arguments of `ask` for one picture of a server, and the class that the network gives it."""
    folder = tmp_path_factory.mktemp("asking")
    program = deal(folder, clients=1)
    running = Running(program, folder / "keys", pools=[folder / "server"])
    Image.effect_noise(SIZE[1:], 90).convert("RGB").save(folder / "a.png")
    told = about(program)
    plain = told.classes[int(program.evaluate(told.read([folder / "a.png"])).argmax())]
    where = ["--server", running.address, "--pool", folder / "client", "--tls", folder / "keys" / "client"]
    yield ["private", "ask", *map(str, [folder / "a.png", *where]), "--json"], plain
    running.stop()


def test_a_client_imports_no_training_code(asking: tuple[list[str], str], tmp_path: Path) -> None:
    arguments, plain = asking
    script = (
        "import sys; from deepshare.cli import main; main(sys.argv[2:]); "
        "print(*sys.modules, sep='\\n', file=open(sys.argv[1], 'w'))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "modules"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["images"][0]["class"] == plain
    loaded = (tmp_path / "modules").read_text().split()
    assert "deepshare.private.engines.gateshare.client" in loaded
    assert {name for name in loaded if name.startswith("deepshare.") and name.split(".")[1] in ABSENT} == set()
    assert {name.partition(".")[0] for name in loaded} & LIBRARIES == set()


def test_asking_from_the_shell_takes_hardly_longer_than_to_import_torch(asking: tuple[list[str], str]) -> None:
    """Seconds of computing: those of a clock say how busy the machine is."""
    torch_alone = min(_seconds("-c", "import torch") for _ in range(2))
    whole = min(_seconds("-m", "deepshare", *asking[0]) for _ in range(2))
    assert whole < 1.15 * torch_alone  # as it does not look for garbage in modules it is 0.85


def _seconds(*arguments: str) -> float:
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime
