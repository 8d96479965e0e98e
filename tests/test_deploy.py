"""Files for deployment: what they start exists, with the flags that they give."""

import configparser
import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from deepshare.cli import main
from deepshare.private.runtime.party import free_ports
from tests.cli.command import FLAGS

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "dev" / "deploy"


@pytest.fixture
def flags(capsys: pytest.CaptureFixture[str]) -> dict[str, set[str]]:
    """Flags of the commands that the files start."""
    found = {}
    for command in ("serve", "ask", "deal"):
        main(["private", command, "--help"])
        found[command] = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    return found


def test_every_variable_and_flag_exists(flags: dict[str, set[str]]) -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    variables = re.findall(r"DEEPSHARE_PRIVATE_SERVE_(\w+):", text)
    assert len(variables) == 6
    assert {f"--{name.lower().replace('_', '-')}" for name in variables} <= flags["serve"]
    commands = re.findall(r"command: \[(\w+), (.*)\]", text)
    assert {command for command, _ in commands} == {"serve", "ask", "deal"}
    for command, arguments in commands:
        assert set(re.findall(r"--[a-z-]+", arguments)) <= flags[command]


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


def test_the_commands_run_in_a_clean_environment(environment: Path, tmp_path: Path) -> None:
    """Dealer, server and client of compose.yaml, then the unit: the package installed, no variables but theirs."""
    services, folders = commands(), {name: tmp_path / name for name in ("dealer", "server", "client")}
    main(["train", "-r", "digits", "--out", str(folders["server"] / "run"), *FLAGS])
    port, monitor = free_ports("127.0.0.1", 2)
    clean = {"PATH": f"{environment}:/usr/bin:/bin", "HOME": str(tmp_path)}

    def local(service: str, text: str) -> str:
        """The same for this machine: folders in the place of volumes, other ports."""
        text = text.replace("/data", str(folders[service])).replace("0.0.0.0", "127.0.0.1")
        return text.replace("server:8443", f"127.0.0.1:{port}").replace("8443", str(port)).replace("9090", str(monitor))

    def private(service: str, *arguments: str) -> None:
        command = ["deepshare", "private", *arguments]
        folders[service].mkdir(exist_ok=True)
        done = subprocess.run(command, cwd=folders[service], env=clean, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def serve(command: list[str], variables: dict[str, str]) -> str:
        """Start a server, wait until it is healthy, let a client ask, and stop it; returns its log."""
        process = subprocess.Popen(
            command, cwd=folders["server"], env=clean | variables, stderr=subprocess.PIPE, text=True
        )
        try:
            health = [local("server", word) for word in services["server"]["healthcheck"]["test"][1:]]
            deadline = time.monotonic() + 120
            while subprocess.run(health, env=clean, capture_output=True).returncode:
                assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            private("client", *(local("client", word) for word in services["client"]["command"]))
            process.terminate()
            said = process.communicate(timeout=int(services["server"]["stop_grace_period"].removesuffix("s")))[1]
        finally:
            process.kill()
        assert process.returncode == 0, said
        return said

    private("server", "keys", "keys", "--host", "127.0.0.1")
    (folders["dealer"]).mkdir()
    private("server", "outline", "run", str(folders["dealer"] / "network.json"))
    private("dealer", *(local("dealer", word.replace("100", "4")) for word in services["dealer"]["command"]))
    folders["client"].mkdir()
    for whose in ("server", "client"):
        (folders["dealer"] / "pools" / whose).rename(folders[whose] / "pools")
    (folders["server"] / "keys" / "client").rename(folders["client"] / "keys")
    (folders["server"] / "keys" / "server").rename(folders["server"] / "own")
    shutil.rmtree(folders["server"] / "keys")
    (folders["server"] / "own").rename(folders["server"] / "keys")
    Image.new("L", (8, 8), 7).save(folders["client"] / "picture.png")

    server = services["server"]
    variables = {name: local("server", value) for name, value in server["environment"].items()}
    said = serve(["deepshare", "private", *(local("server", word) for word in server["command"])], variables)
    assert '"message": "ended"' in said.splitlines()[-1]

    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read(DEPLOY / "deepshare.service")
    command = unit["Service"]["ExecStart"].replace("/opt/deepshare/bin", str(environment))
    flags = {name.removeprefix("DEEPSHARE_PRIVATE_SERVE_").lower(): value for name, value in variables.items()}
    lines = [
        f"{name} = {value if name in ('port', 'log_json') else json.dumps(value)}" for name, value in flags.items()
    ]
    (folders["server"] / "deepshare.toml").write_text("\n".join(["[private.serve]", *lines, ""]))
    assert "1 image in" in serve(command.replace("/srv/deepshare", str(folders["server"])).split(), {})


@pytest.mark.skipif(shutil.which("docker") is None, reason="docker is not installed")
def test_compose_reads_its_file() -> None:
    command = ["docker", "compose", "-f", str(DEPLOY / "compose.yaml"), "--profile", "by-hand", "config", "--services"]
    done = subprocess.run(command, capture_output=True, text=True)
    if "is not a docker command" in done.stderr or "unknown shorthand" in done.stderr:
        pytest.skip("docker has no compose")
    assert sorted(done.stdout.split()) == ["client", "dealer", "server"], done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_reads_the_unit() -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", str(DEPLOY / "deepshare.service")], capture_output=True, text=True
    )
    said = [line for line in done.stderr.splitlines() if "deepshare.service" in line]
    assert [line for line in said if "is not executable" not in line] == []
