"""`deepshare private`, and `plan --cost`."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from PIL import Image

from deepshare.cli import main
from deepshare.data import load
from deepshare.private.runtime.party import free_ports
from tests.cli.command import FLAGS, Cli

crypten = pytest.mark.skipif(find_spec("crypten") is None, reason="engine crypten is not installed")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("private") / "run"
    main(["train", "-r", "digits", "--out", str(out), *FLAGS])
    return out


@crypten
def test_run_shows_classes_and_cost(cli: Cli, run: Path, tmp_path: Path) -> None:
    test = load("digits").test
    assert isinstance(test.images, torch.Tensor)
    Image.fromarray(test.images[0, 0].numpy()).save(tmp_path / "one.png")
    asked = cli("private", "run", run, "--images", tmp_path / "one.png", "--json")
    assert asked.code == 0, asked.err
    assert asked.err.startswith("crypten: ")
    said = json.loads(asked.out)
    evaluated = json.loads(cli("eval", run, "--json").out)
    assert said["cost"]["online"]["comparisons"] == evaluated["gates"]
    assert said["cost"]["error"] < 1e-2
    assert said["images"][0]["image"] == str(tmp_path / "one.png") and said["images"][0]["class"] in test.classes
    text = cli("private", "run", run, "--samples", "2", "--layers").out
    assert "test image 1 (" in text and "SharedActivation layer1.0.act1" in text and "s online for 2 images" in text


def test_gateshare_from_outline_to_answer(cli: Cli, run: Path, tmp_path: Path) -> None:
    """All commands of the guide, with a dealer's pools and certificates, the server a process of its own."""
    test = load("digits").test
    assert isinstance(test.images, torch.Tensor)
    pictures = [tmp_path / f"{number}.png" for number in range(2)]
    for number, path in enumerate(pictures):
        Image.fromarray(test.images[number, 0].numpy()).save(path)
    steps: list[tuple[object, ...]] = [
        ("keys", tmp_path / "trial", "--host", "localhost"),
        ("outline", run, tmp_path / "network.json"),
        ("deal", tmp_path / "network.json", tmp_path / "pools", "--images", "4", "--clients", "2"),
    ]
    for step in steps:
        done = cli("private", *step)
        assert done.code == 0, done.err
    alone = json.loads(cli("private", "run", run, "-e", "gateshare", "--images", *pictures, "--json").out)
    with serving(run, "--pool", tmp_path / "pools/server", "--tls", tmp_path / "trial/server") as port:
        where = ("--server", f"localhost:{port}", "--tls", tmp_path / "trial/client")
        asked = cli("private", "ask", *pictures, *where, "--pool", tmp_path / "pools/client-1", "--json")
        assert asked.code == 0, asked.err
        refused = cli("private", "ask", pictures[0], *where)
        assert refused.code == 2 and "--pool" in refused.err
    said = json.loads(asked.out)
    assert [image["class"] for image in said["images"]] == [image["class"] for image in alone["images"]]
    for key in ("server_bytes", "client_bytes", "rounds", "comparisons"):
        assert said["cost"]["online"][key] == alone["cost"]["online"][key] > 0
    # The same material; now and then a lot has to be replaced.
    assert said["cost"]["offline"]["dealer_bytes"] == pytest.approx(alone["cost"]["offline"]["dealer_bytes"], rel=0.5)
    assert alone["cost"]["error"] < 0.05


@contextmanager
def serving(run: Path, *arguments: object) -> Iterator[int]:
    """A server's process, on a free port."""
    (port,) = free_ports("127.0.0.1", 1)
    command = [
        sys.executable,
        "-m",
        "deepshare",
        "private",
        "serve",
        run,
        "-e",
        "gateshare",
        "--port",
        port,
        *arguments,
    ]
    with subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert any("serving" in line for line in process.stderr), "it ended"
            yield port
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
    assert process.returncode == 0


def test_what_is_wrong_is_one_line(cli: Cli, run: Path, tmp_path: Path) -> None:
    Image.new("RGB", (9, 8)).save(tmp_path / "p.png")
    wrong = cli("private", "run", run, "--images", tmp_path / "p.png")
    assert wrong.code == 2 and "p.png has 9x8 pixels but the network takes 8x8" in wrong.err
    assert "--samples 0: give more than 0" in cli("private", "run", run, "--samples", "0").err
    assert "no engine is named foo" in cli("private", "run", run, "--engine", "foo").err
    assert "there is no folder" in cli("private", "serve", tmp_path / "none").err
    old = shutil.copytree(run, tmp_path / "old")
    (old / "images.json").unlink()
    assert "does not say what its images are like" in cli("private", "run", old).err
    (old / "images.json").write_text("{")
    assert "images.json is damaged" in cli("private", "run", old).err
    assert "no server at 127.0.0.1:9" in cli("private", "ask", tmp_path / "p.png", "--server", "127.0.0.1:9").err


def test_keys(cli: Cli, tmp_path: Path) -> None:
    assert cli("private", "keys", tmp_path / "k", "--host", "a.example", "10.0.0.1").code == 0
    assert "is there already" in cli("private", "keys", tmp_path / "k").err


def test_plan_with_cost(cli: Cli) -> None:
    said = cli("plan", "resnet18", "--budget", "6000", "--cost", "crypten", "--json")
    cost = json.loads(said.out)["cost"]
    assert cost["this plan"]["online"]["comparisons"] == 6000
    assert cost["all ReLUs"]["online"]["comparisons"] == 491_520
    saved = cost["all ReLUs"]["activations"]["client_bytes"] / cost["this plan"]["activations"]["client_bytes"]
    assert saved > 11
    assert "this plan  activations        6,000" in cli("plan", "resnet18", "--budget", "6000", "--cost", "crypten").out
