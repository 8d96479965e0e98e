"""The journal of a server: what it logs, and what it counts for whoever watches over it.

Counts are kept here and rendered in the text format of Prometheus, so that a server needs no further package.
"""

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from deepshare.private.runtime.engine import Outcome
from deepshare.text import printable

LOGGER = logging.getLogger("deepshare.server")
LONGEST_LINE = 300
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

Sample = tuple[str, dict[str, str], float]
"""Name, labels and value of a gauge."""


class Journal:
    """Logs events and counts them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self._times: dict[tuple[str, str], list[int]] = {}
        self._sums: dict[tuple[str, str], float] = {}

    def answered(self, who: str, network: str, owner: str, images: int, outcome: Outcome) -> None:
        """Record an inference."""
        with self._lock:
            self._counts["inferences_total", (("network", network),)] += 1
            self._counts["images_total", (("network", network),)] += images
            sent = sum(part.server_bytes for part in outcome.layers.values())
            sent += outcome.offline.server_bytes + outcome.session.server_bytes
            self._counts["sent_bytes_total", (("network", network),)] += sent
            phases = {"session": outcome.session.seconds, "offline": outcome.offline.seconds, "online": outcome.seconds}
            for phase, seconds in phases.items():
                buckets = self._times.setdefault((network, phase), [0] * (len(BUCKETS) + 1))
                buckets[next((place for place, most in enumerate(BUCKETS) if seconds <= most), len(BUCKETS))] += 1
                self._sums[network, phase] = self._sums.get((network, phase), 0.0) + seconds
        what = "1 image" if images == 1 else f"{images} images"
        self.info(f"{who}: {what} in {outcome.seconds:.2f} s", network=network, owner=owner, images=images)

    def refused(self, who: str, kind: str, reason: str) -> None:
        """Record a refusal, or a client that is gone.

        Args:
            who: The client.
            kind: For the count.
            reason: For the log.
        """
        with self._lock:
            self._counts["refusals_total", (("reason", kind),)] += 1
        # Anybody can cause these, as many as they like.
        level = logging.DEBUG if kind == "stranger" else logging.WARNING
        LOGGER.log(level, line(f"{who}: {reason}"), extra={"fields": {"kind": kind}})

    def info(self, text: str, **fields: Any) -> None:
        """Log a line, with values of its own for JSON."""
        LOGGER.info(line(text), extra={"fields": fields})

    def warning(self, text: str, **fields: Any) -> None:
        """Log something that an operator should look at."""
        LOGGER.warning(line(text), extra={"fields": fields})

    def failed(self, who: str, error: BaseException) -> None:
        """Log a failure of the server's own."""
        with self._lock:
            self._counts["refusals_total", (("reason", "failed"),)] += 1
        LOGGER.error(line(f"{who}: {type(error).__name__}: {error}"), exc_info=error, extra={"fields": {}})

    def metrics(self, gauges: Iterable[Sample]) -> str:
        """All counts as text, in the format that Prometheus reads.

        Args:
            gauges: Values of the moment.
        """
        with self._lock:
            counts, times, sums = dict(self._counts), {k: list(v) for k, v in self._times.items()}, dict(self._sums)
        lines = [f"deepshare_{name}{_labels(dict(labels))} {value}" for (name, labels), value in sorted(counts.items())]
        for (network, phase), buckets in sorted(times.items()):
            total, labels = 0, {"network": network, "phase": phase}
            for most, count in zip((*BUCKETS, "+Inf"), buckets, strict=True):
                total += count
                lines.append(f"deepshare_inference_seconds_bucket{_labels(labels | {'le': str(most)})} {total}")
            lines.append(f"deepshare_inference_seconds_sum{_labels(labels)} {sums[network, phase]:.6f}")
            lines.append(f"deepshare_inference_seconds_count{_labels(labels)} {total}")
        lines += [f"deepshare_{name}{_labels(labels)} {value:g}" for name, labels, value in gauges]
        return "\n".join([*_types(lines), ""])


def _labels(labels: dict[str, str]) -> str:
    said = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items())
    return f"{{{said}}}" if said else ""


def _types(lines: list[str]) -> list[str]:
    """The lines with the type of each metric before its first."""
    found: dict[str, list[str]] = {}
    for one in lines:
        name = one.partition("{")[0].partition(" ")[0]
        found.setdefault(name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count"), []).append(one)
    kinds = {"_total": "counter", "_seconds": "histogram"}
    result = []
    for name, group in found.items():
        kind = next((kind for end, kind in kinds.items() if name.endswith(end)), "gauge")
        result += [f"# TYPE {name} {kind}", *group]
    return result


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
