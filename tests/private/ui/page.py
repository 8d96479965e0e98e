"""The page as a process, and Chromium to look at it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[3] / "src"


@contextmanager
def page(*arguments: object) -> Iterator[str]:
    """HOST:PORT of `deepshare private ui`, which is ended by SIGTERM and must leave nothing."""
    command = [sys.executable, "-m", "deepshare", "private", "ui", "--port", "0", "--no-browser", *map(str, arguments)]
    given = {**os.environ, "PYTHONPATH": str(SOURCE)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=given) as process:
        try:
            assert process.stderr is not None
            found = None
            while found is None:
                line = process.stderr.readline()
                assert line, "it ended"
                found = re.search(r"the page is http://(127\.0\.0\.1:\d+)", line)
            yield found[1]
        finally:
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=60)[1]
    assert (process.returncode, said) == (0, "")


def fetched(where: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    """Status, content and headers of an answer; the headers Host and Origin are those of the page unless given."""
    connection = HTTPConnection(where, timeout=120)
    own = {"Origin": f"http://{where}", "Host": where} | headers
    connection.putrequest("GET" if body is None else "POST", path, skip_host=True)
    for name, value in own.items():
        if value:
            connection.putheader(name, value)
    connection.putheader("Content-Length", str(len(body or b"")))
    connection.endheaders(body)
    response = connection.getresponse()
    answer: tuple[int, bytes, Any] = response.status, response.read(), dict(response.getheaders())
    connection.close()
    return answer
