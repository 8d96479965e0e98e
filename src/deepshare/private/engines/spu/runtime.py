"""The runtime of one party and its connection: variables that it holds a share of, and functions of both parties."""

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
from deepshare.private.runtime.engine import Role, Task
from deepshare.private.runtime.outcome import Part
from deepshare.private.transport.tls import Tls

SERVER, CLIENT = 0, 1
RANKS: dict[Role, int] = {"server": SERVER, "client": CLIENT}

CONNECT_SECONDS = 60
# How long a party waits for a message: on CHEETAH the other may compute for minutes before it answers.
MESSAGE_SECONDS = 1200
# One certificate between a party's own and the authority.
_DEPTH = 2
_SECRET = libspu.Visibility.VIS_SECRET


def connect(task: Task, meter: LogMeter) -> Any:
    """Find the other party.

    Raises:
        EngineError: It is not there, or its certificate is not of our authority.
    """
    try:
        return libspu.link.create_brpc(_description(task), RANKS[task.role])
    except RuntimeError as error:
        raise _reason(task, meter, str(error)) from error


def _reason(task: Task, meter: LogMeter, message: str) -> EngineError:
    other = next(role for role in RANKS if role != task.role)
    there = f"the {other} at {task.addresses[other]}"
    if "connect to mesh" not in message:
        return EngineError(f"the {task.role} cannot listen at {task.addresses[task.role]}: is the port taken?")
    if "SSL" in meter.complaints():
        return EngineError(f"{there} and the {task.role} refuse each other: give both certificates of one authority")
    return EngineError(f"{there} was not there within {CONNECT_SECONDS} s: start it, and let its port through")


def _description(task: Task) -> Any:
    desc = libspu.link.Desc()
    desc.id = "deepshare"
    for role in RANKS:
        desc.add_party(role, task.addresses[role])
    # One try takes a bit more than the interval.
    desc.connect_retry_times = 3 * CONNECT_SECONDS // 2
    desc.connect_retry_interval_ms = 500
    desc.retry_opts.max_retry = 1
    desc.retry_opts.retry_interval_ms = 200
    desc.recv_timeout_ms = MESSAGE_SECONDS * 1000
    if task.tls is not None:
        desc.enable_ssl = True
        for options in (desc.client_ssl_opts, desc.server_ssl_opts):
            _trust(options, task.tls)
    return desc


def _trust(options: Any, tls: Tls) -> None:
    options.cert.certificate_path = str(tls.certificate)
    options.cert.private_key_path = str(tls.key)
    options.verify.ca_file_path = str(tls.authority)
    options.verify.verify_depth = _DEPTH


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
