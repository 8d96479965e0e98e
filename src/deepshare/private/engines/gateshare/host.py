"""The session host: one server for many clients at once, with a thread for each, one set of weights and one pool.

A thread computes while it holds a turn, and yields it whenever it waits for its client: a client that is slow or gone
holds up nobody. There are as many turns as keep all cores busy.
"""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.limb_matmul import whole_is_faster
from deepshare.private.engines.gateshare.main import serve, server_setup
from deepshare.private.engines.gateshare.preprocessing.pool import LotPool
from deepshare.private.engines.gateshare.server import ServerParty
from deepshare.private.engines.gateshare.transport.channel import YieldingChannel
from deepshare.private.engines.gateshare.transport.token_listener import TokenListener
from deepshare.private.ir.program import Program
from deepshare.private.runtime.engine import Outcome, Task

# Cores for each turn: products of limbs of one image hardly gain from more. torch's own have one thread, so that there
# is a turn for each core.
_THREADS = 4


class SessionHost:
    """Hosts sessions of many clients; see `deepshare.private.runtime.engine.Host`.

    Args:
        program: With its weights.
        pool: The server's folder.

    Raises:
        EngineError: The pool is of another network, or of another party.
    """

    def __init__(self, program: Program, pool: Path | None) -> None:
        if pool is None:
            raise EngineError("gateshare serves what was dealt beforehand: give the server's pool with --pool")
        self._setup = server_setup(LotPool(pool, "server", program), program)
        self._server = ServerParty(self._setup.schedule, self._setup.seed)
        with torch.no_grad():
            self._masked_weights = list(self._server.masked_weights())
        cores = len(os.sched_getaffinity(0))
        self._threads = 1 if whole_is_faster() else min(cores, _THREADS)
        self._turns = threading.Semaphore(cores // self._threads)

    def session(self, host: str) -> "HostedSession":
        """Begin to listen for one client."""
        return HostedSession(self, host)

    def serve(self, connection: socket.socket, task: Task) -> Outcome:
        """Do the server's part for a client that is connected."""
        client = YieldingChannel(connection, "client", self._turns)
        torch.set_num_threads(self._threads)  # each thread of Python has its own number
        with torch.no_grad(), self._turns:
            return serve(task.count, client, self._setup, self._server, self._masked_weights)


class HostedSession:
    """One client's session; see `deepshare.private.runtime.engine.Session`.

    Args:
        host: The session host.
        address: Address to listen on.
    """

    def __init__(self, host: SessionHost, address: str) -> None:
        self._host, self._listener = host, TokenListener(address)
        self.address, self.token = self._listener.address, self._listener.token
        self.cut, self.close = self._listener.cut, self._listener.close

    def answer(self, task: Task, ready: Callable[[], None]) -> Outcome:
        """Do the server's part."""
        connection = self._listener.admit(task.tls)
        ready()
        return self._host.serve(connection, task)
