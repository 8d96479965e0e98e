"""All parties on this machine, each in a process of its own."""

import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from queue import Queue

from torch import Tensor

from deepshare.private.ir.program import Program
from deepshare.private.runtime.engine import Engine, Outcome, Role, Task
from deepshare.private.runtime.party import CONNECT_SECONDS, Event, ProcessParty, watch


@dataclass(frozen=True)
class Machine:
    """A machine that a party runs on.

    Attributes:
        host: Its address.
        through: The command that processes are started through there, such as `ip netns exec NAME`.
    """

    host: str = "127.0.0.1"
    through: tuple[str, ...] = ()


def run_here(
    engine: Engine,
    program: Program,
    images: Tensor,
    options: Mapping[str, str],
    machines: Mapping[Role, Machine] | None = None,
) -> dict[Role, Outcome]:
    """Run all parties and wait for them; no process is left when this returns or raises.

    Raises:
        EngineError: A party failed; says which and why.
    """
    roles = engine.roles(options)
    where = {role: (machines or {}).get(role, Machine()) for role in roles}
    ports = free_ports(Machine().host, len(roles))
    addresses = {role: f"{where[role].host}:{port}" for role, port in zip(roles, ports, strict=True)}
    events: Queue[Event] = Queue()
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    outline = program.outline()
    with ExitStack() as stack:
        for role in roles:
            task = Task(
                role=role,
                program=program if role == "server" else outline,
                addresses=addresses,
                images=images if role == "client" else None,
                count=len(images),
                options=options,
            )
            party = ProcessParty(engine.name, task, threads, where[role].through)
            party.start(events.put)
            stack.callback(party.stop)
        return watch(events, roles, _unconnected)


def _unconnected(roles: list[Role]) -> str:
    return f"the {', '.join(roles)} did not connect within {CONNECT_SECONDS} s: is the machine busy?"


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [int(one.getsockname()[1]) for one in sockets]
