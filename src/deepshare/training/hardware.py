"""Where and how a network is trained, apart from what decides the result."""

import atexit
import os
from dataclasses import dataclass
from typing import Literal

import torch.distributed as dist
from lightning_fabric import Fabric

Precision = Literal["32-true", "bf16-mixed"]


@dataclass(frozen=True)
class Hardware:
    """The machine's side of a run.

    Several processes share each batch; every one of them has BatchNorm statistics of its own part of it, and those of
    the first are saved.

    Attributes:
        accelerator: `cpu`, `cuda`, `mps`, or `auto` for the best there is.
        devices: Processes on each machine; torchrun has a flag of its own for it.
        num_nodes: Machines, likewise; all of them must see the run folder.
        precision: Of the forward and backward pass.
        compile: Whether to compile the network.
        deterministic: Whether to refuse operations that may differ from run to run.
    """

    accelerator: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    precision: Precision = "32-true"
    compile: bool = False
    deterministic: bool = False

    def launch(self) -> Fabric:
        """Start the processes, unless torchrun did; in each of them this returns."""
        devices, nodes = self.devices, self.num_nodes
        if dist.is_torchelastic_launched():
            devices = int(os.environ["LOCAL_WORLD_SIZE"])
            nodes = int(os.environ["WORLD_SIZE"]) // devices
        fabric = Fabric(
            accelerator=self.accelerator,
            devices=devices,
            num_nodes=nodes,
            precision=self.precision,
            strategy="ddp" if devices * nodes > 1 else "auto",
        )
        fabric.launch()
        if dist.is_initialized():
            # A process that ends with threads of its group still running may abort.
            atexit.unregister(_leave)
            atexit.register(_leave)
        return fabric


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
