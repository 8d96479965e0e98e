"""Commands of the guides run, block by block, on a small network in the place of the reader's own."""

import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from PIL import Image

from deepshare import zoo
from deepshare.data import load
from deepshare.private.runtime.party import free_ports
from tests.docs.pages import DOCS, blocks

pytestmark = pytest.mark.slow
NETWORK = "digits-resnet10-192"
PAGES = ("private", "operations", "own-model", "comparators", "segmentation", "results")
# In the place of what the reader has; the first that fits is taken for each spot.
INSTEAD = {
    r"runs/demo/shared|runs/mine|runs/digits|\bRUN\b": NETWORK,
    r"(?:HOST|server\.example):8443": "localhost:{port}",
    r"--port 8443": "--port {port}",
    r"127\.0\.0\.1:9090": "127.0.0.1:{monitor}",
    r"server\.example": "localhost",
    r"0\.0\.0\.0": "127.0.0.1",
    r"--images 1000?\b": "--images 4",
    r"--samples 256(?: --data-dir DIR)?": "--samples 16",
    r"study xor": "study xor --seeds 2 --epochs 50",
}
LEFT_OUT = {
    r"--data-dir DATA|study scenes|runs/(plain|ten)\b": "needs a data set, or a run of it",
    r"private ui": "shows a page until it is interrupted; tests/private/ui does that",
    r"private dealer|pool fill": "runs until it is interrupted; tests/private/remote does that",
}
BLOCKS = [(page, number) for page in PAGES for number in range(len(blocks(DOCS / f"{page}.md", "sh")))]


def lines(page: str, number: int) -> list[str]:
    """Commands of a block that run here."""
    found = blocks(DOCS / f"{page}.md", "sh")[number][1].splitlines()
    return [
        line for line in found if line.startswith("deepshare ") and not any(re.search(one, line) for one in LEFT_OUT)
    ]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the guides take for granted: pictures, weights, certificates, pools."""
    folder = tmp_path_factory.mktemp("prepared")
    test = load("digits").test
    assert isinstance(test.images, torch.Tensor)
    digits = [Image.fromarray(image[0].numpy()) for image in test.images[:40]]
    for name, digit in zip(("a.png", "b.png"), digits, strict=False):
        digit.save(folder / name)
    for number, digit in enumerate(digits):
        place = folder / "pictures" / ("circle", "cross")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        digit.convert("RGB").resize((64, 64)).save(place / f"{number // 2}.png")
    if find_spec("timm"):
        torch.save(zoo.build("timm:resnet10t", num_classes=2).state_dict(), folder / "weights.pt")
    for line in (
        "private keys KEYS --host localhost",
        f"private outline {NETWORK} network.json",
        "private deal network.json dealt --images 4",
    ):
        finish(start(line.split(), folder))
    shutil.copytree(folder / "KEYS", folder / "keys")
    (folder / "pools").mkdir()
    shutil.move(folder / "dealt" / "server", folder / "pools" / "first")
    return folder


@pytest.mark.parametrize(("page", "number"), BLOCKS, ids=str)
def test_the_commands_of_a_block_run(page: str, number: int, prepared: Path, tmp_path: Path) -> None:
    wanted = lines(page, number)
    if not wanted:
        pytest.skip("nothing in it that runs here")
    for name, package in (("spu", "spu"), ("timm:", "timm"), ("crypten", "crypten")):
        if any(name in line for line in wanted) and find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    keeps = prepared.iterdir() if page != "private" else (prepared / name for name in ("a.png", "b.png", "KEYS"))
    for one in keeps:
        (shutil.copytree if one.is_dir() else shutil.copy)(one, tmp_path / one.name)
    port, monitor = free_ports("127.0.0.1", 2)
    with ExitStack() as servers:
        for line in wanted:
            words = shlex.split(instead(line, port, monitor), comments=True)[1:]
            if words[:2] == ["private", "serve"]:
                words += [] if "--port" in words else ["--port", str(port)]
                servers.enter_context(serving(words, port, tmp_path))
            else:
                assert finish(start(words, tmp_path)), f"{line} says nothing"


def test_most_commands_are_run() -> None:
    every = [line for page in PAGES for block in blocks(DOCS / f"{page}.md", "sh") for line in block[1].splitlines()]
    run = [line for page, number in BLOCKS for line in lines(page, number)]
    left = [line for line in every if line.startswith("deepshare ") and line not in run]
    assert len(run) > 35 and all(any(re.search(one, line) for one in LEFT_OUT) for line in left)


def instead(line: str, port: int, monitor: int) -> str:
    """Name what is there in the place of what the reader has."""
    pattern = "|".join(f"(?P<g{number}>{one})" for number, one in enumerate(INSTEAD))
    given = list(INSTEAD.values())

    def replace(found: re.Match[str]) -> str:
        return given[int(str(found.lastgroup)[1:])].format(port=port, monitor=monitor)

    return re.sub(pattern, replace, line)


@contextmanager
def serving(words: list[str], port: int, folder: Path) -> Iterator[None]:
    """Run a server in the background, from when it listens."""
    server = start(words, folder)
    try:
        assert server.stderr is not None
        next(line for line in server.stderr if str(port) in line)
        yield
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)


def start(words: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start a command in a folder."""
    command = [sys.executable, "-m", "deepshare", *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    """What a command printed; it has to succeed."""
    said, errors = process.communicate(timeout=900)
    assert process.returncode == 0, f"{process.args!r}: {errors}"
    return said
