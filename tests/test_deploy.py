"""Files for deployment: what they start exists, with the flags that they give."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from deepshare.cli import main

DEPLOY = Path(__file__).parents[1] / "dev" / "deploy"


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


def test_the_image_is_not_run_as_root() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    user = next(number for number, line in enumerate(lines) if line.startswith("USER "))
    assert lines[user] != "USER root" and not any(line.startswith("RUN") for line in lines[user:])
    assert 'ENTRYPOINT ["deepshare", "private"]' in lines


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
