import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from PIL import Image

from deepshare.errors import EngineError
from deepshare.private.cost import Result
from deepshare.private.engines.gateshare.preprocessing.stock import levels
from deepshare.private.engines.gateshare.server import ServerSession
from deepshare.private.remote import server as remote_server
from deepshare.private.remote.client import LostError, Server, ask_when_free, connected
from deepshare.private.runtime.outcome import Outcome, account
from deepshare.private.transport.channel import LaterError
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


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Server]:
    """A server on which a test changes what it says."""
    running = Running(deal(tmp_path, images=6, clients=1), pools=[tmp_path / "server"])
    yield Server(address=running.address, pool=tmp_path / "client")
    running.stop()


def ask_one(asked: Server) -> Result:
    return ask_when_free(asked, lambda client: client.ask(torch.randn(1, *SIZE)))


def test_a_server_that_says_later_once_lots_are_spent_is_not_asked_again(
    hostile: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds of asking again would use up the pool."""

    def later(self: ServerSession, _: int) -> None:
        self._client.receive_message()
        raise LaterError("ask again later")

    def left() -> int:
        assert hostile.pool is not None
        return sum(level.left for level in levels(hostile.pool))

    monkeypatch.setattr(ServerSession, "_agree", later)
    with pytest.raises(LostError, match="ask again later; what was dealt for these images is spent"):
        ask_one(hostile)
    assert left() == 5


@pytest.mark.parametrize("value", [10**400, 1 << 62, -1, float("nan"), float("inf")])
def test_a_cost_that_is_none_is_an_error_of_one_line(
    hostile: Server, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    whole = account

    def absurd(outcome: Outcome) -> dict[str, object]:
        said = whole(outcome)
        return said | ({"seconds": value} if isinstance(value, float) else {"offline": {"server_bytes": value}})

    monkeypatch.setattr(remote_server, "account", absurd)
    with pytest.raises(EngineError, match="the other party's account of its cost is damaged"):
        ask_one(hostile)


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
    assert whole < torch_alone  # half of which it leaves out


def test_what_a_client_leaves_out_of_torch_is_there_for_whoever_imports_it() -> None:
    code = (
        "import sys\n"
        "from deepshare.cli.options import importing\n"
        "with importing(lean=True):\n"
        "    import torch\n"
        "name = 'torch._meta_registrations'\n"
        "assert name not in sys.modules, 'a stub is left'\n"
        "import torch._meta_registrations\n"
        "assert hasattr(sys.modules[name], 'meta_conv')\n"
        "x = torch.empty(1, 3, 8, 8, device='meta')\n"
        "torch.Generator().manual_seed(1)\n"
        "print(torch.nn.functional.conv2d(x, torch.empty(4, 3, 3, 3, device='meta')).shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "torch.Size([1, 4, 6, 6])\n", done.stderr


def _seconds(*arguments: str) -> float:
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime
