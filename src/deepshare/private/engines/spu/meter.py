"""The cost of a run, from the runtime's own statistics.

The runtime writes how many bytes each executable sent to its log, and every message to a trace, without its content.
"""

import ctypes
import re
import time
from collections import defaultdict
from math import prod
from pathlib import Path
from typing import Any

from spu import libspu

from deepshare.private.runtime.outcome import Part

_SENT = re.compile(r"Link details: total send bytes (\d+)")
_MESSAGE = re.compile(r"\[spu link\] key=(\S+?):(?:P2P-\d+:(\d)->\d|\d+:\w+), tag=")
_COMPARISON = re.compile(
    r"= pphlo\.(?:less|less_equal|greater|greater_equal|maximum|minimum)\b.*tensor<([\dx]*)x!pphlo"
)


class LogMeter:
    """Reads the logs of the runtime; one for a process, which has one set of logs.

    Args:
        folder: Folder for the logs.
        rank: This party's.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._rank = rank
        self._log, self._trace = folder / "log", folder / "trace"
        self._read: dict[Path, int] = {}
        options = libspu.logging.LogOptions()
        options.enable_console_logger = False
        options.log_level = libspu.logging.LogLevel.INFO
        options.system_log_path = str(self._log)
        options.trace_log_path = str(self._trace)
        options.trace_content_length = 0
        libspu.logging.setup_logging(options)

    def run(self, runtime: Any, executable: Any) -> Part:
        """Run an executable and return its cost for this party."""
        self._new(self._log), self._new(self._trace)
        start = time.perf_counter()
        runtime.run(executable)
        seconds = time.perf_counter() - start
        sent = int(_SENT.findall(self._new(self._log))[-1])
        side = {"server_bytes": sent} if self._rank == 0 else {"client_bytes": sent}
        return Part(seconds=seconds, rounds=self._rounds(self._new(self._trace)), **side)

    def complaints(self) -> str:
        """New lines of the runtime's log."""
        return self._new(self._log)

    def _new(self, path: Path) -> str:
        ctypes.CDLL(None).fflush(None)  # the trace stays in a buffer of C otherwise
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            text = file.read()
        self._read[path] = self._read.get(path, 0) + len(text)
        return text.decode(errors="replace")

    def _rounds(self, trace: str) -> int:
        """Waits of this party: messages that come without one going in between are waited for together.

        Links other than the main one work beside each other, so that the longest counts.
        """
        waits: dict[str, int] = defaultdict(int)
        waiting: dict[str, bool] = defaultdict(bool)
        for link, sender in _MESSAGE.findall(trace):
            receives = sender != str(self._rank)
            exchange = not sender
            waits[link] += exchange or (receives and not waiting[link])
            waiting[link] = receives
        main = min(waits, key=len, default="")
        return waits[main] + max((count for link, count in waits.items() if link != main), default=0)


def comparisons(code: bytes) -> int:
    """Elements that are compared by compiled code.

    >>> comparisons(b"%2 = pphlo.maximum %0, %1 : tensor<2x3x!pphlo.secret<f32>>")
    6
    """
    return sum(prod(map(int, sizes.split("x"))) for sizes in _COMPARISON.findall(code.decode()))
