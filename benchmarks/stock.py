"""CrypTen as installed, for comparison: a program run with CrypTen's own tensors between two processes.

It uses nothing of engine crypten. Openings are gloo's reductions, each product opens both factors, weights included,
and CrypTen's first party generates triples on demand, which is part of the measured time. It supports the operations of
a ResNet with shared gates or ReLUs.
"""

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepshare.private.engines.crypten.comparison import import_crypten
from deepshare.private.ir.program import (
    Add,
    Convolution,
    GatedActivation,
    Input,
    Linear,
    Operation,
    Program,
    Resample,
    Reshape,
    SharedActivation,
)
from deepshare.private.runtime.engine import Role
from deepshare.private.runtime.party import Machine, free_ports

ROLES: tuple[Role, Role] = ("server", "client")


def run(program: Program, images: Tensor, machines: Mapping[Role, Machine]) -> tuple[float, Tensor]:
    """Seconds from the shared images to the logits, and the logits."""
    hosts = {role: machines.get(role, Machine()) for role in ROLES}
    meet = f"tcp://{hosts['server'].host}:{free_ports('127.0.0.1', 1)[0]}"
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(len(ROLES)):
            whose = program if rank == 0 else program.outline()
            (Path(folder) / str(rank)).write_bytes(pickle.dumps((whose, images if rank else torch.zeros_like(images))))
        parties = [
            subprocess.Popen(
                [*hosts[role].through, sys.executable, __file__, folder, str(rank)],
                env={**os.environ, **_environment(rank, meet, hosts[role])},
            )
            for rank, role in enumerate(ROLES)
        ]
        if [party.wait() for party in parties] != [0, 0]:
            raise SystemExit("CrypTen failed; what it said is above")
        seconds, logits = pickle.loads((Path(folder) / "found").read_bytes())
    return seconds, logits


def _environment(rank: int, meet: str, machine: Machine) -> dict[str, str]:
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    found = {"WORLD_SIZE": "2", "RANK": str(rank), "RENDEZVOUS": meet, "DISTRIBUTED_BACKEND": "gloo"}
    interface = {} if machine.through else {"GLOO_SOCKET_IFNAME": "lo"}
    return found | interface | {"OMP_NUM_THREADS": str(threads)}


def _party(folder: Path, rank: int) -> None:
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        names = [path.name for path in Path("/sys/class/net").iterdir()]
        os.environ["GLOO_SOCKET_IFNAME"] = next(name for name in names if name != "lo")
    crypten = import_crypten()
    program, images = pickle.loads((folder / str(rank)).read_bytes())
    crypten.init()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    secrets = {
        (number, name): crypten.cryptensor(_there(getattr(operation, name)), src=0)
        for number, operation in enumerate(program.operations)
        for name in operation.hidden
        if getattr(operation, name) is not None
    }
    shared = crypten.cryptensor(images.float(), src=1)
    crypten.communicator.get().barrier()
    started = time.perf_counter()
    logits = _evaluate(program, shared, secrets).get_plain_text(dst=1)
    if rank == 1:
        (folder / "found").write_bytes(pickle.dumps((time.perf_counter() - started, logits)))


def _there(tensor: Tensor) -> Tensor:
    return torch.zeros(tensor.shape) if tensor.is_meta else tensor.float()


def _evaluate(program: Program, images: Any, secrets: dict[tuple[int, str], Any]) -> Any:
    values: list[Any] = []
    gates: dict[int, Any] = {}
    for number, operation in enumerate(program.operations):
        inputs = [values[source] for source in operation.inputs]
        own = {name: secrets[number, name] for name in operation.hidden if (number, name) in secrets}
        values.append(images if isinstance(operation, Input) else _apply(number, operation, inputs, own, gates))
    return values[-1]


def _apply(number: int, operation: Operation, inputs: list[Any], own: dict[str, Any], gates: dict[int, Any]) -> Any:
    x = inputs[0]
    match operation:
        case Convolution(stride=stride, padding=padding, dilation=dilation, groups=groups):
            product = x.conv2d(own["weight"], stride=stride, padding=padding, dilation=dilation, groups=groups)
            return product + own["bias"].view(1, -1, 1, 1)
        case Linear():
            return x.matmul(own["weight"].t()) + own["bias"]
        case Add():
            return x + inputs[1]
        case Reshape(shape=shape):
            return x.reshape(-1, *shape)
        case Resample(shape=(_, 1, 1)):
            return x.mean((2, 3), keepdim=True)
        case SharedActivation(leader=leader, prototypes=prototypes, pi=pi):
            if operation.leads:
                gates[number] = x[:, :prototypes].ge(0)
            spread = gates[leader].index_select(1, pi)
            return x * (spread * own["alpha"].view(1, -1, 1, 1) + own["beta"].view(1, -1, 1, 1))
        case GatedActivation(comparisons=count) if count == operation.elements:
            return x.relu()
    raise SystemExit(f"{operation.name}: CrypTen is compared on ResNets alone")


if __name__ == "__main__":
    _party(Path(sys.argv[1]), int(sys.argv[2]))
    os._exit(0)  # CrypTen leaves threads that abort a process as it ends, now and then
