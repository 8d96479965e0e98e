"""Devices and processes that a network is trained on; they do not decide the result."""

import atexit
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.utilities.exceptions import MisconfigurationException

from deepshare.errors import DeepShareError, HardwareError, reason

T = TypeVar("T")
Precision = Literal["32-true", "bf16-mixed"]


@dataclass(frozen=True)
class Hardware:
    """Devices and processes of a run.

    Several processes split each batch. Each has the BatchNorm statistics of its own part; those of the first are saved.

    Attributes:
        accelerator: `cpu`, `cuda`, `mps`, or `auto` for the best available.
        devices: Processes per machine; torchrun sets them with its own flag.
        num_nodes: Machines; torchrun sets them with its own flag. All must see the run folder.
        precision: Precision of the forward and backward pass.
        compile: Compile the network.
        deterministic: Refuse nondeterministic operations.
    """

    accelerator: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    precision: Precision = "32-true"
    compile: bool = False
    deterministic: bool = False

    def __post_init__(self) -> None:
        if self.devices < 1 or self.num_nodes < 1:
            raise HardwareError(f"--devices {self.devices} --num-nodes {self.num_nodes}: give at least 1 of each")

    @property
    def processes(self) -> int:
        """Number of processes on all machines."""
        devices, nodes = self._counts()
        return devices * nodes

    def fabric(self) -> Fabric:
        """Select the devices for `launch`; no process is started yet.

        Raises:
            HardwareError: A device is missing, or there are too few of them.
        """
        devices, nodes = self._counts()
        try:
            fabric = Fabric(
                accelerator=self.accelerator,
                devices=devices,
                num_nodes=nodes,
                precision=self.precision,
                strategy="ddp" if devices * nodes > 1 else "auto",
            )
        except (RuntimeError, ValueError, TypeError, MisconfigurationException) as error:
            asked = f"--accelerator {self.accelerator} --devices {devices} cannot be had here"
            cure = "give --accelerator cpu or auto, and no more --devices than there are"
            raise HardwareError(f"{asked} ({reason(error)}): {cure}") from error
        cores = os.cpu_count() or 1
        if fabric.device.type == "cpu" and devices > cores and not dist.is_torchelastic_launched():
            raise HardwareError(f"{devices} processes would share {cores} cores: give --devices {cores} or fewer")
        return fabric

    def _counts(self) -> tuple[int, int]:
        """Return processes per machine, and machines; those of torchrun if it started this process."""
        if not dist.is_torchelastic_launched():
            return self.devices, self.num_nodes
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        return devices, int(os.environ["WORLD_SIZE"]) // devices


def launch(fabric: Fabric) -> None:
    """Start the processes, unless torchrun did; returns in each of them."""
    fabric.launch()
    if dist.is_initialized():
        # A process that ends with threads of its group still running may abort.
        atexit.unregister(_leave)
        atexit.register(_leave)


def on_all_ranks(fabric: Fabric, check: Callable[[], T]) -> T:
    """Run a check in every process before any continues; if one raises, all do, and the first reports it."""
    if fabric.world_size == 1:
        return check()
    found: T | None = None
    refused: DeepShareError | None = None
    try:
        found = check()
    except DeepShareError as error:
        refused = error
    everywhere: list[DeepShareError | None] = [None] * fabric.world_size
    dist.all_gather_object(everywhere, refused)
    everywhere[fabric.global_rank] = refused  # the copies have lost their cause
    if first := next(filter(None, everywhere), None):
        first.reported_elsewhere = not fabric.is_global_zero
        raise first
    return cast("T", found)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
