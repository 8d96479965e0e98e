import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
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


# Of the package a client imports none of these.
ABSENT = {"methods", "sharing", "study", "training", "zoo"}
ROOT = Path(__file__).parents[3]
# An environment with some distributions alone: nothing else can be imported.
ALONE = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
ABSENT = set(sys.argv.pop(1).split())
sys.meta_path.insert(0, Missing())
from deepshare.cli import main
names = sys.argv.pop(1)
main(sys.argv[1:])
open(names, "w").write("\\n".join(sys.modules))
"""


def not_installed() -> set[str]:
    """Modules of all libraries here but those that docs/private.md installs for a client, and what they require."""
    text = (ROOT / "docs/private.md").read_text()
    (line,) = re.findall(r"^pip install ((?:\w+ )+torch)\b", text, re.MULTILINE)
    found, todo = {"deepshare"}, line.split()
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        for required in distribution(name).requires or []:
            wanted = Requirement(required)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                todo.append(re.sub(r"[-_.]+", "-", wanted.name).lower())
    modules = packages_distributions()
    return {
        root for root, names in modules.items() if not {re.sub(r"[-_.]+", "-", one).lower() for one in names} & found
    }


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


def test_a_client_needs_six_libraries_and_imports_no_training_code(
    asking: tuple[list[str], str], tmp_path: Path
) -> None:
    arguments, plain = asking
    command = [sys.executable, "-c", ALONE, " ".join(not_installed()), str(tmp_path / "modules")]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["images"][0]["class"] == plain
    loaded = (tmp_path / "modules").read_text().split()
    assert "deepshare.private.engines.gateshare.client" in loaded
    assert {name for name in loaded if name.startswith("deepshare.") and name.split(".")[1] in ABSENT} == set()
    trained = subprocess.run(
        [*command, "train", "-r", "digits", "--dry-run"], capture_output=True, text=True, check=False
    )
    assert trained.returncode == 2 and len(trained.stderr.splitlines()) == 1
    assert "is not installed, this is an installation for clients" in trained.stderr


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
