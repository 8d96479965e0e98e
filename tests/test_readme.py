"""The README's blocks run: Python as one program, commands in an empty folder."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from deepshare.cli import EXAMPLES
from deepshare.data import load
from deepshare.private.runtime.party import free_ports
from tests.cli.command import FLAGS
from tests.docs.pages import DOCS, ROOT, blocks, run_python, shell_lines

README = ROOT / "README.md"
FEWER = {"train": FLAGS, "study": ["--seeds", "2", "--epochs", "50"]}
NETWORK = "digits-resnet10-192"  # in place of RUN


@pytest.mark.usefixtures("parties_are_threads")
def test_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_python(README), "the README has no Python block"


def test_pages_show_every_verb() -> None:
    lines = [line for page in (README, *sorted(DOCS.rglob("*.md"))) for line in shell_lines(page)]
    assert [
        verb for verb in EXAMPLES if not any(re.search(rf"\bdeepshare {verb}(?: |$)", line) for line in lines)
    ] == []


@pytest.mark.slow
def test_the_commands_of_the_command_line_run(tmp_path: Path) -> None:
    lines = commands("Command line")
    assert len(lines) > 8
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        said = finish(start([*words, *FEWER.get(words[0], [])], tmp_path))
        assert said, f"{line} says nothing"
    left = ("plan.json", "shared.onnx", "report.html", "runs/digits/result.json", "runs/xor/xor.json")
    assert [file for file in left if not (tmp_path / file).is_file()] == []


@pytest.mark.slow
def test_the_commands_of_private_inference_run(tmp_path: Path) -> None:
    (port,) = free_ports("127.0.0.1", 1)
    test = load("digits").test
    assert isinstance(test.images, torch.Tensor)
    for name, image in zip(("a.png", "b.png"), test.images, strict=False):
        Image.fromarray(image[0].numpy()).save(tmp_path / name)
    server, said = None, ""
    try:
        for line in commands("Private inference"):
            words = shlex.split(
                re.sub(r"\bRUN\b", NETWORK, line).replace("HOST:8443", f"localhost:{port}"), comments=True
            )
            words = ["localhost" if word == "HOST" else word for word in words[1:]]
            if words[:2] == ["private", "serve"]:
                server = start([*words, "--port", str(port)], tmp_path)
                assert server.stderr is not None
                next(line for line in server.stderr if str(port) in line)  # it listens
            else:
                said = finish(start(words, tmp_path))
    finally:
        if server is not None:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=60)
    assert re.search(r"^a\.png +0 ", said, re.MULTILINE) and "online for 2 images" in said


def commands(heading: str) -> list[str]:
    """Command lines in a section of the README."""
    text = README.read_text(encoding="utf-8")
    start, end = text.index(f"\n## {heading}\n"), len(text)
    end = text.find("\n## ", start + 1) if "\n## " in text[start + 1 :] else end
    found = [block for block in blocks(README, "sh") if start < block.start() < end]
    return [line for block in found for line in block[1].splitlines() if line.startswith("deepshare ")]


def start(words: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start a command in a folder."""
    command = [sys.executable, "-m", "deepshare", *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    """What a command printed; it has to succeed."""
    said, errors = process.communicate(timeout=900)
    assert process.returncode == 0, f"{process.args!r}: {errors}"
    return said
