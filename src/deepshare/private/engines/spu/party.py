"""One party's process, from connecting to the end."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from spu.experimental import make_cached_var
from torch import Tensor

from deepshare.private.engines.spu.gated import GatedKernel
from deepshare.private.engines.spu.kernel import Keep, Kernel, as_is
from deepshare.private.engines.spu.local import ShareKernel
from deepshare.private.engines.spu.meter import LogMeter, comparisons
from deepshare.private.engines.spu.products import MultiplyKernel
from deepshare.private.engines.spu.protocol import LIMIT, Protocol
from deepshare.private.engines.spu.registry import lower
from deepshare.private.engines.spu.runtime import CLIENT, RANKS, SERVER, SpuRuntime, connect
from deepshare.private.engines.spu.shared import GatesKernel
from deepshare.private.runtime.engine import Task, check_images_below
from deepshare.private.runtime.outcome import Outcome, Part

# CHEETAH gives each processor so many elements of a comparison, and makes its keys when it first needs them.
_TILE = 2048
# What the parties agree on must not depend on the machine of one of them.
_MOST_CORES = 64


def run(protocol: Protocol, task: Task, ready: Callable[[], None]) -> Outcome:
    """Do one party's part; see `deepshare.private.runtime.engine.Engine`."""
    if task.images is not None:
        check_images_below(task.images, LIMIT)
    with TemporaryDirectory(prefix="deepshare-") as folder:
        meter = LogMeter(Path(folder), RANKS[task.role])
        link = connect(task, meter)
        ready()
        return _Party(protocol, task, SpuRuntime(protocol, link, meter)).infer()


class _Party:
    def __init__(self, protocol: Protocol, task: Task, runtime: SpuRuntime) -> None:
        self.protocol, self.task, self.runtime = protocol, task, runtime
        self.kernels = lower(task.program, protocol.absorbs, task.count)
        self.last = {name: number for number, kernel in enumerate(self.kernels) for name in kernel.inputs}

    def infer(self) -> Outcome:
        start = time.perf_counter()
        spent, executables = self._open_session()
        self.runtime.wait()
        session = replace(spent, seconds=time.perf_counter() - start)
        layers, logits = self._answer(executables)
        return Outcome(logits, layers, Part(), session, sum(part.seconds for part in layers.values()))

    def _open_session(self) -> tuple[Part, list[Any]]:
        """The server's numbers, keys, and all code compiled."""
        for name, owner in (("server.zero", SERVER), ("client.zero", CLIENT)):
            self.runtime.hold(name, owner, np.zeros(()))
        self.runtime.hold("whole.zero", SERVER, np.zeros((), np.int32))
        images = (self.task.count, *self.task.program.input_size)
        self.runtime.hold("images", CLIENT, np.broadcast_to(np.float32(0), images))
        for number, kernel in enumerate(self.kernels):
            for field, value in kernel.hidden.items():
                self.runtime.hold(f"{number}.{field}", SERVER, _array(value))
        spent = self._once(jnp.add, ["server.zero", "client.zero"], ["zero"])
        spent += self._cache() if self.protocol.caches else self._make_keys()
        return spent, [self._compile(number, kernel) for number, kernel in enumerate(self.kernels)]

    def _compile(self, number: int, kernel: Kernel) -> Any:
        compute = _function(kernel, _cached if self.protocol.caches else as_is)
        inputs = [*kernel.inputs, *(f"{number}.{field}" for field in kernel.hidden)]
        if isinstance(kernel, ShareKernel):
            return self.runtime.compile(jnp.add, [*inputs, "server.zero"], [kernel.output])
        if isinstance(kernel, GatesKernel) and self.protocol.caches:
            # Arithmetic shares of the prototypes' gates, before they are spread, opened once for the whole group.
            def gate(x: Array, zero: Array) -> Array:
                return _cached(compute(x).astype(jnp.int32) + zero)

            return self.runtime.compile(gate, [*inputs, "whole.zero"], [kernel.output])
        return self.runtime.compile(compute, inputs, [kernel.output])

    def _once(self, compute: Callable[..., Any], inputs: list[str], outputs: list[str]) -> Part:
        return self.runtime.run(self.runtime.compile(compute, inputs, outputs))

    def _cache(self) -> Part:
        """Share factors, and open them behind masks by multiplying them with zero: later products open them no more."""
        names = [f"{number}.{field}" for number, kernel in enumerate(self.kernels) for field in kernel.factors]

        def share(zero: Array, *factors: Array) -> list[Array]:
            return [_cached(factor + zero) for factor in factors]

        def multiply(zero: Array, *factors: Array) -> list[Array]:
            return [_zero_times(factor, zero) for factor in factors]

        shared = self._once(share, ["client.zero", *names], names)
        return shared + self._once(multiply, ["zero", *names], [f"nothing{number}" for number in range(len(names))])

    def _make_keys(self) -> Part:
        """Make CHEETAH generate its keys now, not at its first comparison and its first products."""
        largest = max(kernel.elements for kernel in self.kernels) * self.task.count
        spread = min(largest, _TILE * _MOST_CORES)

        def select(zeros: Array, zero: Array) -> Array:
            shares = zeros + zero
            return jnp.where(shares >= 0, shares, 0.0)

        self.runtime.hold("zeros", SERVER, np.zeros(spread))
        self.runtime.hold("matrix", SERVER, np.zeros((2, 2)))
        spent = self._once(select, ["zeros", "client.zero"], ["nothing"]) + self._once(
            _zero_times, ["matrix", "zero"], ["nothing"]
        )
        squares = (isinstance(kernel, GatedKernel) and kernel.hidden for kernel in self.kernels)
        if any(squares) or any(isinstance(kernel, MultiplyKernel) for kernel in self.kernels):
            spent += self._once(jnp.multiply, ["zero", "zero"], ["nothing"])
        return spent

    def _answer(self, executables: list[Any]) -> tuple[dict[int, Part], Tensor | None]:
        if self.task.images is not None:
            self.runtime.hold("images", CLIENT, self.task.images.numpy())
        layers: dict[int, Part] = {}
        for number, (kernel, executable) in enumerate(zip(self.kernels, executables, strict=True)):
            part = self.runtime.run(executable)
            counted = {"comparisons": comparisons(executable.code), "products": kernel.products * self.task.count}
            layers[kernel.number] = layers.get(kernel.number, Part()) + replace(part, **counted)
            for name in set(kernel.inputs):
                if self.last[name] == number:
                    self.runtime.drop(name)
        logits, part = self.runtime.reveal(self.kernels[-1].output)
        layers[self.kernels[-1].number] += part
        return layers, None if logits is None else torch.from_numpy(np.asarray(logits))


def _cached(x: Array) -> Array:
    cached: Array = make_cached_var(x)
    return cached


def _function(kernel: Kernel, keep: Keep) -> Callable[..., Array]:
    """A kernel as a function of the variables that it reads, then of its hidden tensors."""

    def compute(*variables: Array) -> Array:
        hidden = dict(zip(kernel.hidden, variables[len(kernel.inputs) :], strict=True))
        return kernel.compute(variables[: len(kernel.inputs)], hidden, keep)

    return compute


def _zero_times(factor: Array, zero: Array) -> Array:
    return jnp.broadcast_to(zero, (2, factor.shape[0])) @ factor


def _array(value: Tensor) -> "np.ndarray[Any, Any]":
    """A tensor's numbers, or zeros of its shape that take no memory."""
    return np.broadcast_to(np.float32(0), value.shape) if value.is_meta else value.numpy()
