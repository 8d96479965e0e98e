"""The runtime of one party: variables that it holds a share of, and functions that it computes with the other."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import spu
from spu import libspu
from spu.utils import frontend

from deepshare.errors import EngineError
from deepshare.private.engines.spu.meter import LogMeter
from deepshare.private.engines.spu.protocol import FRACTION_BITS, Protocol
from deepshare.private.runtime.engine import Part

SERVER, CLIENT = 0, 1
_SECRET = libspu.Visibility.VIS_SECRET


class SpuRuntime:
    """A party's runtime.

    Args:
        protocol: The protocol of both.
        link: The connection.
        meter: Reads what runs cost.
    """

    def __init__(self, protocol: Protocol, link: Any, meter: LogMeter) -> None:
        self.rank: int = link.rank
        self._link, self._meter = link, meter
        self._shapes: dict[str, Any] = {}
        config = libspu.RuntimeConfig(
            protocol=getattr(libspu.ProtocolKind, protocol.kind),
            field=libspu.FieldType.FM64,
            fxp_fraction_bits=FRACTION_BITS,
        )
        config.enable_pphlo_profile = True
        # What one party alone knows stays with it until it meets something of the other: nothing is handed over.
        config.experimental_enable_colocated_optimization = True
        self._io = spu.Io(2, config)
        self._runtime = spu.Runtime(link, config)

    def hold(self, name: str, owner: int, value: "np.ndarray[Any, Any]") -> None:
        """Make a variable of one party's own numbers; for the other party the shape of `value` counts."""
        kind = np.int32 if value.dtype.kind == "i" else np.float32
        known = value.astype(kind) if owner == self.rank else np.zeros(value.shape, kind)
        self._runtime.set_var(name, self._io.make_shares(known, _SECRET, owner)[self.rank])
        self._shapes[name] = _form(value.shape, kind)

    def compile(self, function: Callable[..., Any], inputs: Sequence[str], outputs: Sequence[str]) -> Any:
        """Compile a function of variables that writes others; both parties compile for themselves."""
        arguments = [self._shapes[name] for name in inputs]
        executable, results = frontend.compile(
            frontend.Kind.JAX, function, arguments, {}, list(inputs), [_SECRET] * len(inputs), lambda _: list(outputs)
        )
        for name, result in zip(outputs, jax.tree_util.tree_leaves(results), strict=True):
            self._shapes[name] = _form(result.shape, result.dtype)
        return executable

    def run(self, executable: Any) -> Part:
        """Run compiled code together with the other party."""
        return self._meter.run(self._runtime, executable)

    def drop(self, name: str) -> None:
        """Delete a variable."""
        self._runtime.del_var(name)

    def wait(self) -> None:
        """Wait for the other party."""
        self._link.barrier()

    def reveal(self, name: str) -> tuple["np.ndarray[Any, Any] | None", Part]:
        """Reveal a variable to the client, and to nobody else."""
        own = self._runtime.get_var(name)
        if self.rank == SERVER:
            messages = [own.meta, *own.share_chunks]
            for message in messages:
                self._link.send(CLIENT, message)
            return None, Part(server_bytes=sum(map(len, messages)))
        other = libspu.Share()
        other.meta = self._link.recv(SERVER)
        if other.meta != own.meta:
            raise EngineError("the server's share is not of the client's form: install the same deepshare and spu")
        other.share_chunks = [self._link.recv(SERVER) for _ in own.share_chunks]
        return self._io.reconstruct([other, own]), Part(rounds=1)


def _form(shape: tuple[int, ...], kind: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, kind)  # type: ignore[no-untyped-call]
