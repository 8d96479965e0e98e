"""Whole sessions of all three parties, each in a thread of its own, with everything that they send written down."""

import hashlib
import os
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import get_args

import pytest
from torch import Tensor

from deepshare.private.engines.gateshare import cost_model, main
from deepshare.private.engines.gateshare.cost_model import LayerMeter
from deepshare.private.engines.gateshare.server import ServerMaterial, ServerParty
from deepshare.private.ir.program import Program
from deepshare.private.runtime.engine import Role, Task
from deepshare.private.runtime.outcome import Outcome
from deepshare.private.runtime.party import free_ports
from deepshare.private.transport.channel import MESSAGE, Channel

Frame = tuple[int, bytes]


def fix_randomness(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """From now on the operating system gives what follows from a name, to each thread a stream of its own."""
    calls: Counter[str] = Counter()

    def urandom(size: int) -> bytes:
        thread = threading.current_thread().name
        calls[thread] += 1
        return hashlib.shake_256(f"{name} {thread} {calls[thread]}".encode()).digest(size)

    monkeypatch.setattr(os, "urandom", urandom)


@dataclass(eq=False)
class Seen:
    """What happened in a session.

    Attributes:
        frames: By sender and receiver, steps and payloads in their order.
        noise: What the server added to the logits of each inference.
        logits: The client's.
    """

    frames: dict[tuple[str, str], list[Frame]] = field(default_factory=dict)
    noise: list[Tensor] = field(default_factory=list)
    logits: Tensor | None = None

    @property
    def payloads(self) -> list[tuple[tuple[str, str, int, int], bytes]]:
        """All frames but messages, with sender, receiver, step and size."""
        return [
            ((*ends, step, len(data)), data)
            for ends, frames in self.frames.items()
            for step, data in frames
            if step != MESSAGE
        ]


def session(monkeypatch: pytest.MonkeyPatch, program: Program, images: Tensor) -> Seen:
    """Ask images, one after the other, in one session with a dealer."""
    seen, outcomes = Seen(), dict[Role, Outcome]()
    send, infer = Channel._send, ServerParty.infer

    def kept_frame(self: Channel, step: int, views: list[memoryview]) -> None:
        ends = threading.current_thread().name.partition(" to the ")[0], self.peer  # the dealer has a thread for each
        seen.frames.setdefault(ends, []).append((step, b"".join(views)))
        send(self, step, views)

    def kept_noise(self: ServerParty, material: ServerMaterial, client: Channel, layers: LayerMeter) -> Tensor:
        seen.noise.append(infer(self, material, client, layers))
        return seen.noise[-1]

    roles: tuple[Role, ...] = get_args(Role)
    addresses = {role: f"127.0.0.1:{port}" for role, port in zip(roles, free_ports("127.0.0.1", 3), strict=True)}

    def run(role: Role) -> None:
        whole, mine = (program, None) if role == "server" else (program.outline(), images)
        task = Task(
            role=role,
            program=whole,
            addresses=addresses,
            images=mine if role == "client" else None,
            count=len(images),
        )
        outcomes[role] = main.run(task, lambda: None)

    with monkeypatch.context() as patch:
        patch.setattr(Channel, "_send", kept_frame)
        patch.setattr(ServerParty, "infer", kept_noise)
        patch.setattr(cost_model, "_MOST_BYTES", 1)  # one image at a time
        threads = [threading.Thread(target=run, args=(role,), name=role) for role in roles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seen.logits = outcomes["client"].logits
    return seen
