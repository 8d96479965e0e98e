"""A dealer and a server of the bundled digits on this machine, for those who have none yet.

The folder `digits` is a run of `deepshare train -r digits --model.arguments.width 8`, and its outline.
"""

import io
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path

from PIL import Image

from deepshare.data.digits import load_digits
from deepshare.errors import EngineError
from deepshare.private.remote.tls import make_keys

IMAGES = 200
START_SECONDS = 120.0
# A process that ends with the one that started it, however that ends.
COMMAND = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
from deepshare.cli import main
main(sys.argv[1:])
"""


@contextmanager
def serving_digits() -> Iterator[tuple[str, Path, Path]]:
    """Deal, and serve for as long as this is open, each in a process of its own.

    Yields:
        HOST:PORT of the server, the client's pool and the folder of its certificates.

    Raises:
        EngineError: A process failed; says why.
    """
    with tempfile.TemporaryDirectory(prefix="deepshare-") as name, as_file(files(__package__) / "digits") as run:
        folder = Path(name)
        make_keys(folder / "keys", ["127.0.0.1"])
        dealt = ("deal", run / "network.json", folder / "pools", "--images", IMAGES)
        with _started(folder / "dealer.log", *dealt) as dealer:
            dealer.wait()
            if dealer.returncode:
                raise EngineError(f"the dealer of the demo failed: {_last_line(folder / 'dealer.log')}")
        served = (run, "--pool", folder / "pools" / "server", "--tls", folder / "keys" / "server", "--port", 0)
        with _started(folder / "server.log", "serve", *served) as server:
            yield _address(server, folder / "server.log"), folder / "pools" / "client", folder / "keys" / "client"


def sample_digits() -> list[bytes]:
    """One test picture of each class, as PNG."""
    _, test = load_digits()
    first = {int(test.labels[index]): index for index in reversed(range(len(test)))}
    pictures = []
    for _, index in sorted(first.items()):
        file = io.BytesIO()
        Image.fromarray(test.images[index][0].numpy()).save(file, "PNG")
        pictures.append(file.getvalue())
    return pictures


@contextmanager
def _started(log: Path, *arguments: object) -> Iterator["subprocess.Popen[bytes]"]:
    command = [sys.executable, "-c", COMMAND, "private", *map(str, arguments)]
    with (
        log.open("wb") as file,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


def _address(server: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        if found := re.search(r"serving .* on (127\.0\.0\.1:\d+)", log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise EngineError(f"the server of the demo did not start: {_last_line(log)}")


def _last_line(log: Path) -> str:
    return (log.read_text().strip().splitlines() or ["it said nothing"])[-1]
