"""The server for many clients at once: a thread for each, and one set of weights and one pool for all.

A thread computes when it has a turn, and gives it back whenever it waits for its client: who is slow, or gone, holds up
nobody. There are as many turns as keep all cores busy.
"""

import os
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import torch

from deepshare.errors import EngineError
from deepshare.private.engine import Task
from deepshare.private.gateshare.basis import server_basis
from deepshare.private.gateshare.channel import Polite, accepted, listen
from deepshare.private.gateshare.pool import Pool
from deepshare.private.gateshare.server import Server
from deepshare.private.gateshare.serving import serve
from deepshare.private.program import Program
from deepshare.private.result import Outcome

# Cores for each turn; products of one image hardly gain from more.
_THREADS = 4


class Hosting:
    """See `deepshare.private.engine.Host`.

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
        self._threads = min(cores, _THREADS)
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
    """See `deepshare.private.engine.Session`.

    Args:
        hosting: Who does the work.
        host: Address to listen on.
    """

    def __init__(self, hosting: Hosting, host: str) -> None:
        self._hosting, listener = hosting, listen(f"{host}:0")
        self._sockets, self._ended, self._lock = [listener], False, threading.Lock()
        self.address = f"{host}:{listener.getsockname()[1]}"

    def answer(self, task: Task, ready: Callable[[], None]) -> Outcome:
        """Do the server's part."""
        with closing(self):
            connection = accepted(self._sockets[0], "client", task.tls, self._hold)
            ready()
            return self._hosting.serve(connection, task)

    def cut(self) -> None:
        """Wake whoever waits for a socket, with an error; closing it alone would not."""
        with self._lock:
            self._ended = True
            for one in self._sockets:
                with suppress(OSError):  # it is closed already
                    socket.socket.shutdown(one, socket.SHUT_RDWR)

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            for one in self._sockets:
                one.close()

    def _hold(self, connection: socket.socket) -> None:
        """Keep a connection, so that it can be cut; one that comes too late is."""
        with self._lock:
            self._sockets.append(connection)
            if self._ended:
                raise ConnectionAbortedError("it was ended before")
