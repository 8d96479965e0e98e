"""Files for deployment: what they start exists, with the flags that they give."""

import configparser
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from deepshare.cli import main
from deepshare.private.runtime.party import free_ports
from tests.cli.command import FLAGS

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "dev" / "deploy"


COMMANDS = {"serve": "serve", "ask": "ask", "dealer": "dealer", "pool": "pool fill"}


@pytest.fixture
def flags(capsys: pytest.CaptureFixture[str]) -> dict[str, set[str]]:
    """Flags of the commands that the files start."""
    found = {}
    for command, words in COMMANDS.items():
        main(["private", *words.split(), "--help"])
        found[command] = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    return found


def test_every_variable_and_flag_exists(flags: dict[str, set[str]]) -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    variables = re.findall(r"DEEPSHARE_PRIVATE_SERVE_(\w+):", text)
    assert len(variables) == 6
    assert {f"--{name.lower().replace('_', '-')}" for name in variables} <= flags["serve"]
    commands = re.findall(r"command: \[(\w+), (.*)\]", text)
    assert {command for command, _ in commands} == set(COMMANDS)
    for path in DEPLOY.glob("*.service"):
        commands += re.findall(r"ExecStart=\S+ private (\w+) (.*)", path.read_text())
    assert len(commands) == 5 + 3
    for command, arguments in commands:
        assert set(re.findall(r"--[a-z-]+", arguments)) <= flags[command]


def test_the_image_gets_what_it_is_made_of_and_nothing_else() -> None:
    ignored, *kept = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] != "#"]
    sources = re.findall(r"^COPY (?!--from)(.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert ignored == "*"
    assert {line[1:] for line in kept if line[0] == "!"} == set(" ".join(sources).split())


def test_every_instruction_of_the_image_is_sound() -> None:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert {line.split()[0] for line in lines} <= known
    assert all(re.fullmatch(r"FROM [\w/]+:\d[\w.-]+( AS build)?", line) for line in lines if line.startswith("FROM"))
    for line in lines:
        if line.startswith("COPY") and "--from" not in line:
            *sources, _ = line.split()[1:]
            assert all((ROOT / source).exists() for source in sources), line
        if line.startswith(("ENTRYPOINT", "CMD")):
            assert all(isinstance(word, str) for word in json.loads(line.partition(" ")[2]))
    user = next(number for number, line in enumerate(lines) if line.startswith("USER "))
    assert int(lines[user].split()[1]) > 0 and not any(line.startswith("RUN") for line in lines[user:])
    assert 'ENTRYPOINT ["deepshare", "private"]' in lines


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run(["hadolint", str(DEPLOY / "Dockerfile")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def commands() -> dict[str, Any]:
    """The services of compose.yaml."""
    yaml: Any = pytest.importorskip("yaml", reason="PyYAML comes with the documentation's tools")
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"])


@dataclass
class Log:
    """What a service said."""

    text: str = ""


class Trial:
    """The trial of compose.yaml on this machine: the package installed, no variables but its own.

    Args:
        environment: With the command `deepshare`.
        folder: For the folders of the three.
    """

    def __init__(self, environment: Path, folder: Path) -> None:
        self.services = commands()
        self.folders = {name: folder / name for name in ("dealer", "server", "client")}
        self.ports = dict(zip(("8443", "8444", "9090"), map(str, free_ports("127.0.0.1", 3)), strict=True))
        self.clean = {"PATH": f"{environment}:/usr/bin:/bin", "HOME": str(folder)}
        for path in self.folders.values():
            path.mkdir()

    def folder(self, service: str) -> Path:
        """The volume of a service."""
        return self.folders[service.removesuffix("-lots")]

    def local(self, service: str, text: str) -> str:
        """The same for this machine: folders in the place of volumes, other ports."""
        text = re.sub(r"\b(server|dealer):(?=\d)|0\.0\.0\.0(?=:|$)", lambda m: "127.0.0.1" + ":" * bool(m[1]), text)
        for port, own in self.ports.items():
            text = re.sub(rf"\b{port}\b", own, text)
        return text.replace("/data", str(self.folder(service)))

    def command(self, service: str) -> list[str]:
        """The command of a service."""
        return ["deepshare", "private", *(self.local(service, word) for word in self.services[service]["command"])]

    def run(self, service: str, *arguments: str) -> str:
        """Run a command, by default that of the service, to its end."""
        command = ["deepshare", "private", *arguments] if arguments else self.command(service)
        where = self.folder(service)
        done = subprocess.run(command, cwd=where, env=self.clean, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def running(self, service: str, command: list[str], variables: dict[str, str] | None = None) -> Iterator[Log]:
        """Run a service until the block ends; it must end by SIGTERM, in its time."""
        log = Log()
        process = subprocess.Popen(
            command, cwd=self.folder(service), env=self.clean | (variables or {}), stderr=subprocess.PIPE, text=True
        )
        try:
            yield log
            assert process.poll() is None, process.communicate()
            process.terminate()
            grace = self.services[service].get("stop_grace_period", "20s")
            log.text = process.communicate(timeout=int(grace.removesuffix("s")))[1]
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, log.text

    def wait_for(self, what: Callable[[], object]) -> None:
        """Wait until something is the case."""
        deadline = time.monotonic() + 120
        while not what():
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def is_healthy(self) -> bool:
        """The health of the server as compose sees it."""
        health = [self.local("server", word) for word in self.services["server"]["healthcheck"]["test"][1:]]
        return not subprocess.run(health, env=self.clean, capture_output=True).returncode


def unit(name: str) -> configparser.SectionProxy:
    """The service of a unit."""
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.read(DEPLOY / name)
    return found["Service"]


def test_the_commands_run_in_a_clean_environment(environment: Path, tmp_path: Path) -> None:
    """Dealer, server, client and their lots as compose.yaml starts them, then the server's unit."""
    trial = Trial(environment, tmp_path)
    folders, services = trial.folders, trial.services
    main(["train", "-r", "digits", "--out", str(folders["server"] / "run"), *FLAGS])
    trial.run("server", "keys", "all", "--host", "127.0.0.1")
    for name, folder in folders.items():
        (folders["server"] / "all" / name).rename(folder / "keys")
    trial.run("server", "outline", "run", str(folders["dealer"] / "network.json"))
    Image.new("L", (8, 8), 7).save(folders["client"] / "picture.png")
    variables = {name: trial.local("server", value) for name, value in services["server"]["environment"].items()}
    lots = folders["client"] / "pools" / "lots"

    with trial.running("dealer", trial.command("dealer")) as dealt:
        dealer = ("127.0.0.1", int(trial.ports["8444"]))
        trial.wait_for(lambda: not socket.socket().connect_ex(dealer))  # in compose the others start anew until then
        with ExitStack() as stack:
            for service in ("server-lots", "client-lots"):
                stack.enter_context(trial.running(service, [*trial.command(service), "--every", "0.5"]))
            trial.wait_for(lambda: lots.exists() and len(list(lots.glob("[0-9a-f]*"))) >= 10)
            with trial.running("server", trial.command("server"), variables) as served:
                trial.wait_for(trial.is_healthy)
                trial.run("client")
    assert '"message": "ended"' in served.text.splitlines()[-1]
    assert "ended" in dealt.text.splitlines()[-1]

    flags = {name.removeprefix("DEEPSHARE_PRIVATE_SERVE_").lower(): value for name, value in variables.items()}
    lines = [
        f"{name} = {value if name in ('port', 'log_json') else json.dumps(value)}" for name, value in flags.items()
    ]
    (folders["server"] / "deepshare.toml").write_text("\n".join(["[private.serve]", *lines, ""]))
    command = unit("deepshare.service")["ExecStart"].replace("/opt/deepshare/bin", str(environment))
    command = command.replace("/srv/deepshare", str(folders["server"]))
    with trial.running("server", command.split()) as served:
        trial.wait_for(trial.is_healthy)
        trial.run("client")
    assert "1 image in" in served.text


@pytest.mark.skipif(shutil.which("docker") is None, reason="docker is not installed")
def test_compose_reads_its_file() -> None:
    command = ["docker", "compose", "-f", str(DEPLOY / "compose.yaml"), "--profile", "by-hand", "config", "--services"]
    done = subprocess.run(command, capture_output=True, text=True)
    if "is not a docker command" in done.stderr or "unknown shorthand" in done.stderr:
        pytest.skip("docker has no compose")
    assert sorted(done.stdout.split()) == ["client", "client-lots", "dealer", "server", "server-lots"], done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("name", sorted(path.name for path in DEPLOY.glob("*.service")))
def test_systemd_reads_the_units(name: str) -> None:
    done = subprocess.run(["systemd-analyze", "verify", str(DEPLOY / name)], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if name in line]
    assert [line for line in said if "is not executable" not in line] == []
