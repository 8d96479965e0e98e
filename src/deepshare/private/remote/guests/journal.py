"""The journal of a server: what it logs, to stderr, and what it counts for whoever watches over it."""

import json
import logging
import sys
import time
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from deepshare.errors import EngineError
from deepshare.private.runtime.outcome import Outcome
from deepshare.text import printable

LOGGER = logging.getLogger("deepshare.server")
LEVELS = ("debug", "info", "warning", "error")
LONGEST_LINE = 300
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Journal:
    """Logs events and counts them.

    Attributes:
        registry: The counts, for Prometheus; of this journal alone, so that a process may hold several servers.
    """

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        by_network = ("network",)
        self._inferences = Counter("deepshare_inferences", "Requests answered.", by_network, registry=registry)
        self._images = Counter("deepshare_images", "Images answered.", by_network, registry=registry)
        self._sent = Counter("deepshare_sent_bytes", "Payload sent to clients.", by_network, registry=registry)
        self._seconds = Histogram(
            "deepshare_inference_seconds",
            "Seconds of a request.",
            ("network", "phase"),
            buckets=BUCKETS,
            registry=registry,
        )
        self._refusals = Counter("deepshare_refusals", "Clients without an answer.", ("reason",), registry=registry)

    def answered(self, who: str, network: str, owner: str, images: int, outcome: Outcome) -> None:
        """Record an inference."""
        sent = sum(part.server_bytes for part in outcome.layers.values())
        self._inferences.labels(network).inc()
        self._images.labels(network).inc(images)
        self._sent.labels(network).inc(sent + outcome.offline.server_bytes + outcome.session.server_bytes)
        phases = {"session": outcome.session.seconds, "offline": outcome.offline.seconds, "online": outcome.seconds}
        for phase, seconds in phases.items():
            self._seconds.labels(network, phase).observe(seconds)
        what = "1 image" if images == 1 else f"{images} images"
        self.info(f"{who}: {what} in {outcome.seconds:.2f} s", network=network, owner=owner, images=images)

    def refused(self, who: str, kind: str, reason: str) -> None:
        """Record a refusal, or a client that is gone.

        Args:
            who: The client.
            kind: For the count.
            reason: For the log.
        """
        self._refusals.labels(kind).inc()
        # Anybody can cause these, as many as they like; and a client that is ready for its next image may end.
        levels = {"stranger": logging.DEBUG, "left": logging.INFO}
        LOGGER.log(levels.get(kind, logging.WARNING), line(f"{who}: {reason}"), extra={"fields": {"kind": kind}})

    def info(self, text: str, **fields: Any) -> None:
        """Log a line, with values of its own for JSON."""
        LOGGER.info(line(text), extra={"fields": fields})

    def warning(self, text: str, **fields: Any) -> None:
        """Log something that an operator should look at."""
        LOGGER.warning(line(text), extra={"fields": fields})

    def failed(self, who: str, error: BaseException) -> None:
        """Log a failure of the server's own."""
        self._refusals.labels("failed").inc()
        LOGGER.error(line(f"{who}: {type(error).__name__}: {error}"), exc_info=error, extra={"fields": {}})


def line(text: str) -> str:
    """Text for a log: one line, not too long, and nothing that a terminal would obey."""
    plain = printable(text)
    return plain if len(plain) <= LONGEST_LINE else f"{plain[:LONGEST_LINE]} ..."


class TextFormatter(logging.Formatter):
    """A line with time and level."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime


class JsonFormatter(logging.Formatter):
    """A JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        said = {"time": f"{stamp}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        said |= {"message": record.getMessage(), **getattr(record, "fields", {})}
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said)


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
