"""The server for many clients at once: a thread for each, and one set of weights and one pool for all.

A thread computes when it has a turn, and gives it back whenever it waits for its client: who is slow, or gone, holds up
nobody. There are as many turns as keep all cores busy.
"""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.basis import server_basis
from deepshare.private.engines.gateshare.crypto.limb_matmul import whole_is_faster
from deepshare.private.engines.gateshare.preprocessing.pool import Pool
from deepshare.private.engines.gateshare.server import Server
from deepshare.private.engines.gateshare.serving import serve
from deepshare.private.engines.gateshare.transport.channel import Polite
from deepshare.private.engines.gateshare.transport.token_listener import Door
from deepshare.private.ir.program import Program
from deepshare.private.runtime.engine import Outcome, Task

# Cores for each turn: products of limbs of one image hardly gain from more. torch's own have one thread, so that there
# is a turn for each core.
_THREADS = 4


class Hosting:
    """See `deepshare.private.runtime.engine.Host`.

    Args:
        program: With its hidden numbers.
        pool: The server's folder.

    Raises:
        EngineError: The pool is of another network, or of another party.
    """

    def __init__(self, program: Program, pool: Path | None) -> None:
        if pool is None:
            raise EngineError("gateshare serves what was dealt beforehand: give the server's pool with --pool")
        self._basis = server_basis(Pool(pool, "server", program), program)
        self._server = Server(self._basis.steps, self._basis.seed)
        with torch.no_grad():
            self._offsets = list(self._server.prepare())
        cores = len(os.sched_getaffinity(0))
        self._threads = 1 if whole_is_faster() else min(cores, _THREADS)
        self._turns = threading.Semaphore(cores // self._threads)

    def session(self, host: str) -> "Hosted":
        """Begin to listen for one client."""
        return Hosted(self, host)

    def serve(self, connection: socket.socket, task: Task) -> Outcome:
        """Do the server's part for a client that is connected."""
        client = Polite(connection, "client", self._turns)
        torch.set_num_threads(self._threads)  # each thread of Python has its own number
        with torch.no_grad(), self._turns:
            return serve(task.count, client, self._basis, self._server, self._offsets)


class Hosted:
    """See `deepshare.private.runtime.engine.Session`.

    Args:
        hosting: Who does the work.
        host: Address to listen on.
    """

    def __init__(self, hosting: Hosting, host: str) -> None:
        self._hosting, self._door = hosting, Door(host)
        self.address, self.token = self._door.address, self._door.token
        self.cut, self.close = self._door.cut, self._door.close

    def answer(self, task: Task, ready: Callable[[], None]) -> Outcome:
        """Do the server's part."""
        connection = self._door.admit(task.tls)
        ready()
        return self._hosting.serve(connection, task)
