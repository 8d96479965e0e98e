"""Products of numbers under encryption: shares of x y mod 2^64, one by one, for x of the client and y of the server.

Squares and products of hidden tensors need them; linear layers have `hinted`. The protocol is CHEETAH's (Huang et al.,
2022) as SecretFlow SPU has it, semi-honest. The shares are SPU's own, taken from its memory as they are. That is no
interface of SPU, so its version is fixed, the form of every share is checked, and products whose results are known come
first.

SPU talks through the parties' own channel. So it needs no port, its bytes are counted and TLS covers them.
"""

import re
from collections.abc import Iterable
from importlib import metadata, util
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.spu.cheetah import BATCH, Triples
from deepshare.private.runtime.engine import Role
from deepshare.private.runtime.outcome import Part

SPU_VERSION = "0.10.0.dev20251211"
_STORAGE = "cheetah.AShr<FM64>"
_WAIT_MILLISECONDS = 3_600_000  # longer than messages wait, so that theirs is the error
_RANKS: dict[Role, int] = {"server": 0, "client": 1}
_TRIAL = 16  # products, for which both make keys
MOST_PRODUCTS = 1 << 17
"""That are made at once."""


class Messages(Protocol):
    """The part of `Duplex` that encryption needs.

    Attributes:
        error: The reason why nothing comes any more.
    """

    error: Exception | None

    def put(self, name: str, content: bytes) -> None:
        """Send a message, without waiting."""

    def get(self, name: str) -> bytes:
        """Wait for the next message of this name."""


def parts(count: int) -> list[slice]:
    """The products that are made at once."""
    return [slice(begin, min(begin + MOST_PRODUCTS, count)) for begin in range(0, count, MOST_PRODUCTS)]


def products_cost(counts: Iterable[int]) -> Part:
    """Bytes of products after the trial, within some percent."""
    triples, cost = Triples(BATCH - _TRIAL), Part()
    for count in counts:
        for part in parts(count):
            made = triples.product(part.stop - part.start)
            cost += Part(server_bytes=made.server_bytes, client_bytes=made.client_bytes)
    return cost


def check_installed() -> None:
    """Refuse to begin without the one SPU whose shares are known.

    Raises:
        EngineError: Says what to install.
    """
    cure = (
        f"install it with pip install 'deepshare[spu]' (spu {SPU_VERSION}), which has wheels for Python 3.11 on Linux"
    )
    if util.find_spec("spu") is None:
        raise EngineError(f"products under encryption need SPU: {cure}")
    found = metadata.version("spu")
    if found != SPU_VERSION:
        raise EngineError(f"products under encryption are made for spu {SPU_VERSION}, not {found}: {cure}")


class Encrypted:
    """One party's end of products under encryption.

    Args:
        duplex: Messages to the other party.
        party: This party.
    """

    def __init__(self, duplex: Messages, party: Role) -> None:
        import spu
        from spu import libspu

        self._duplex, self._rank, self._libspu = duplex, _RANKS[party], libspu
        options = libspu.logging.LogOptions()
        options.enable_console_logger = False
        options.system_log_path = "/dev/null"
        options.log_level = libspu.logging.LogLevel.ERROR
        libspu.logging.setup_logging(options)
        desc = libspu.link.Desc()
        desc.id = "deepshare"
        for name in _RANKS:
            desc.add_party(name, name)
        desc.recv_timeout_ms = _WAIT_MILLISECONDS
        config = libspu.RuntimeConfig(
            protocol=libspu.ProtocolKind.CHEETAH, field=libspu.FieldType.FM64, fxp_fraction_bits=18
        )
        config.experimental_enable_colocated_optimization = True
        ends = [None, None]
        self._end = ends[1 - self._rank] = _linked(duplex)
        self._io, self._executables = spu.Io(2, config), dict[int, Any]()
        self._link = libspu.link.create_with_channels(desc, self._rank, ends)
        self._runtime = spu.Runtime(self._link, config)

    @classmethod
    def begin(cls, duplex: Messages, party: Role) -> Self:
        """Connect to the other party, which begins too, and multiply for trial.

        Raises:
            EngineError: SPU is missing, or another one than is known, or it does not multiply as it did.
        """
        check_installed()
        encrypted = cls(duplex, party)
        encrypted._try()
        return encrypted

    def products(self, own: Tensor) -> Tensor:
        """Shares of the products of two vectors, number by number.

        Raises:
            EngineError: The other party sent something else.
            ConnectionError: It is gone.
        """
        return torch.cat([self._multiplied(own[part]) for part in parts(len(own))])

    def _multiplied(self, own: Tensor) -> Tensor:
        mine = "y" if self._rank == 0 else "x"
        try:
            for owner, name in ((1, "x"), (0, "y")):
                known = own.contiguous().numpy() if name == mine else np.zeros(len(own), np.int64)
                secret = self._libspu.Visibility.VIS_SECRET
                self._runtime.set_var(name, self._io.make_shares(known, secret, owner)[self._rank])
            self._runtime.run(self._compiled(len(own)))
            share = self._share("xy", len(own))
            for name in ("x", "y", "xy"):
                self._runtime.del_var(name)
        except RuntimeError as error:
            if self._duplex.error is not None:
                raise self._duplex.error from error
            raise EngineError(
                f"a product under encryption failed ({_reason(error)}): start both parties again"
            ) from error
        return share

    def _try(self) -> None:
        """Multiply numbers that both know, and compare."""
        x, y = (torch.arange(1, _TRIAL + 1) * factor for factor in (0x5851F42D4C957F2D, 0x14057B7EF767814F))
        share = self.products(y if self._rank == 0 else x)
        # Both send their whole share: it is of no secret.
        self._duplex.put("trial", share.numpy().tobytes())
        other = np.frombuffer(bytearray(self._duplex.get("trial")), np.int64)
        if other.size != _TRIAL or not torch.equal(share + torch.from_numpy(other), x * y):
            raise EngineError(
                f"this SPU multiplies wrongly, or the other party has another: install spu {SPU_VERSION} on both sides"
            )

    def _compiled(self, count: int) -> Any:
        if count not in self._executables:
            import jax
            from spu.utils import frontend

            secret = self._libspu.Visibility.VIS_SECRET
            with jax.enable_x64(True):
                arguments = [jax.ShapeDtypeStruct((count,), np.int64)] * 2  # type: ignore[no-untyped-call]
                self._executables[count], _ = frontend.compile(
                    frontend.Kind.JAX, lambda x, y: x * y, arguments, {}, ["x", "y"], [secret] * 2, lambda _: ["xy"]
                )
        return self._executables[count]

    def _share(self, name: str, count: int) -> Tensor:
        """The raw share of a variable, if it has the form that is known."""
        share, meta = self._runtime.get_var(name), self._libspu.ValueMeta()
        meta.ParseFromString(share.meta)
        content = bytearray()
        for data in share.share_chunks:
            chunk = self._libspu.ValueChunk()
            chunk.ParseFromString(data)
            content += chunk.content
        if meta.storage_type != _STORAGE or len(content) != 8 * count:
            raise EngineError(
                f"SPU holds a share of {len(content)} bytes as {meta.storage_type}, and one of "
                f"{8 * count} as {_STORAGE} is known: install spu {SPU_VERSION}"
            )
        return torch.frombuffer(content, dtype=torch.int64)


def _reason(error: RuntimeError) -> str:
    """SPU's message without the place in its source, and without its stack."""
    said = str(error).split("stacktrace:")[0].removeprefix("what:")
    return " ".join(re.sub(r"\[[^\]]*\]", "", said).split())


def _linked(duplex: Messages) -> Any:
    """The other party as SPU sees it."""
    from spu import libspu

    def send(_: Any, key: str, content: bytes) -> None:
        duplex.put(key, content)

    def nothing(*_: Any) -> None:
        pass

    methods = {
        **dict.fromkeys(("Send", "SendAsync", "SendAsyncThrottled"), send),
        "Recv": lambda _, key: duplex.get(key),
        "TestSend": lambda *_: duplex.put("connect", b""),
        "TestRecv": lambda _: duplex.get("connect") and None,
        "GetRecvTimeout": lambda _: _WAIT_MILLISECONDS,
        **dict.fromkeys(("SetRecvTimeout", "SetThrottleWindowSize", "SetChunkParallelSendSize"), nothing),
        **dict.fromkeys(("WaitLinkTaskFinish", "Abort"), nothing),
    }
    # SPU calls them by their names in C++.
    return type("Linked", (libspu.link.IChannel,), methods)()
