"""All parties on this machine, each in a process of its own."""

import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from queue import Empty, Queue

from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.ir.program import Program
from deepshare.private.result import Outcome
from deepshare.private.runtime.engine import Engine, Role, Task
from deepshare.private.runtime.subprocess_party import Event, Worker, failure

# Parties have to find each other within this time; how long they compute is their affair.
CONNECT_SECONDS = 120
# A party that fails takes the others with it, and they may be heard first.
GRACE_SECONDS = 10.0
# The likeliest cause first: a party whose connection was lost has a cause elsewhere, maybe in a party that is gone.
FAILURES = ("refused", "failed", "gone", "lost")


@dataclass(frozen=True)
class Place:
    """Where a party runs.

    Attributes:
        host: Its address.
        through: The command that its process is started through, such as `ip netns exec NAME`.
    """

    host: str = "127.0.0.1"
    through: tuple[str, ...] = ()


def run_here(
    engine: Engine,
    program: Program,
    images: Tensor,
    options: Mapping[str, str],
    places: Mapping[Role, Place] | None = None,
) -> dict[Role, Outcome]:
    """Run all parties and wait for them; no process is left when this returns or raises.

    Raises:
        EngineError: A party failed; says which and why.
    """
    roles = engine.roles(options)
    where = {role: (places or {}).get(role, Place()) for role in roles}
    ports = free_ports(Place().host, len(roles))
    addresses = {role: f"{where[role].host}:{port}" for role, port in zip(roles, ports, strict=True)}
    events: Queue[Event] = Queue()
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    outline = program.outline()
    with ExitStack() as stack:
        for role in roles:
            whose = program if role == "server" else outline
            task = Task(role, whose, addresses, images if role == "client" else None, len(images), None, options)
            stack.callback(Worker(engine.name, task, events, threads, where[role].through).stop)
        return _gather(events, roles)


def _gather(events: "Queue[Event]", roles: tuple[Role, ...]) -> dict[Role, Outcome]:
    outcomes: dict[Role, Outcome] = {}
    ready: set[Role] = set()
    while len(outcomes) < len(roles):
        try:
            role, kind, value = events.get(timeout=None if ready >= set(roles) else CONNECT_SECONDS)
        except Empty:
            late = ", ".join(sorted(set(roles) - ready))
            raise EngineError(f"the {late} did not connect within {CONNECT_SECONDS} s: is the machine busy?") from None
        if kind in FAILURES:
            raise failure(*cause(events, (role, kind, value), set(roles) - set(outcomes)))
        ready.add(role)
        if kind == "done":
            outcomes[role] = value
    return outcomes


def cause(events: "Queue[Event]", first: Event, running: set[Role]) -> tuple[Role, str]:
    """Of the failures at one time the one that caused the others: a reason that an engine gave, or else the likeliest.

    Args:
        events: Where parties are heard.
        first: The failure that was heard first.
        running: The parties that had not ended before; they are waited for, until there is a reason or one is gone.
    """
    heard, deadline = [first], time.monotonic() + GRACE_SECONDS
    with suppress(Empty):
        while heard[-1][1] not in ("refused", "gone") and not running <= {
            event[0] for event in heard if event[1] != "ready"
        }:
            heard.append(events.get(timeout=max(0.0, deadline - time.monotonic())))
    failures = [event for event in heard if event[1] in FAILURES]
    role, _, reason = min(failures, key=lambda event: FAILURES.index(event[1]))
    return role, reason


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [int(one.getsockname()[1]) for one in sockets]
