"""A server in operation: its logs, its health and figures over HTTP, and its end."""

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType

from deepshare.errors import EngineError
from deepshare.private.remote.guests.journal import LOGGER, JsonFormatter, TextFormatter
from deepshare.private.remote.server import Listening

LEVELS = ("debug", "info", "warning", "error")


class StderrHandler(logging.Handler):
    """Writes to stderr as it is at the time: that of the start may be closed by then."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        with suppress(OSError, ValueError):  # nobody reads it any more, and clients are to be answered
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()


def start_logging(level: str, *, as_json: bool) -> None:
    """Log to stderr, with time and level.

    Raises:
        EngineError: There is no such level.
    """
    if level not in LEVELS:
        raise EngineError(f"--log-level {level}: take one of {', '.join(LEVELS)}")
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(level.upper())
    LOGGER.propagate = False


def wait(listening: Listening, said: str, monitor: str | None, drain: float) -> None:
    """Serve until Ctrl-C, or until SIGTERM and the end of those that are being answered, or until `shutdown`.

    Outside the main thread, which alone gets signals, only `shutdown` ends it.

    Args:
        listening: The server.
        said: What it logs when it is ready.
        monitor: HOST:PORT for health and figures; None for none.
        drain: Seconds for those that are being answered.
    """
    journal, stopping = listening.journal, threading.Event()

    def end(*_: int | FrameType | None) -> None:
        if not stopping.is_set():
            stopping.set()
            threading.Thread(target=finish, daemon=True).start()

    def finish() -> None:
        journal.info(f"stopping: {listening.sessions} clients are being answered")
        whole = listening.drain(drain)
        journal.info("ended" if whole else f"ended, with {listening.sessions} clients cut off")
        listening.shutdown()

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, end) if in_main else None
    try:
        with monitored(listening, monitor, stopping):
            journal.info(said)
            listening.serve_forever()
    except KeyboardInterrupt:
        journal.info("ended")
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def monitored(listening: Listening, address: str | None, stopping: threading.Event) -> Iterator[None]:
    """Answer /healthz and /metrics for as long as this lasts.

    Raises:
        EngineError: The address is none, or is taken.
    """
    if address is None:
        yield
        return

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            """Answer."""
            if self.path == "/healthz":
                code, body = (503, b"stopping\n") if stopping.is_set() else (200, b"ok\n")
            elif self.path == "/metrics":
                code, body = 200, listening.metrics()
            else:
                code, body = 404, b"give /healthz or /metrics\n"
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: it is asked all the time."""

    host, _, port = address.rpartition(":")
    try:
        server = ThreadingHTTPServer((host or "127.0.0.1", int(port)), Handler)
    except (ValueError, OverflowError) as error:
        raise EngineError(f"--monitor {address}: give HOST:PORT") from error
    except OSError as error:
        raise EngineError(f"cannot listen on {address} ({error.strerror}): give another --monitor") from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="monitor", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
