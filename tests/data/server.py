"""A small HTTP server with configurable faults."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Serves one content at every address.

    Attributes:
        content: Response body.
        cuts: Bytes after which each of the next responses breaks off.
        ranges: Honour the Range header.
        lengths: Send a Content-Length header.
        status: Respond with this error instead, if set.
        pause: Seconds between the two halves of an answer.
        asked: The Range header of each request so far.
    """

    daemon_threads = True

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = content
        self.cuts: list[int] = []
        self.ranges = True
        self.lengths = True
        self.status = 0
        self.pause = 0.0
        self.asked: list[str | None] = []

    def handle_error(self, *_: object) -> None:
        """Ignore clients that disconnect."""

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        if self.server.status:
            self.send_error(self.server.status)
            return
        match = re.fullmatch(r"bytes=(\d+)-", asked or "")
        start = int(match[1]) if match and self.server.ranges else 0
        if start >= len(self.server.content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        body = self.server.content[start:]
        if self.server.lengths:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.server.cuts:
            body = body[: self.server.cuts.pop(0)]
        self.wfile.write(body[: len(body) // 2])
        time.sleep(self.server.pause)
        self.wfile.write(body[len(body) // 2 :])

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def serving(content: bytes) -> Iterator[Server]:
    server = Server(content)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
