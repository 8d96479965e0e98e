"""Products under homomorphic encryption: shares of A W mod 2^64, for a matrix A of the client and W of the server.

The protocol is CHEETAH's (Huang et al., 2022) as SecretFlow SPU has it, semi-honest: whoever has the smaller matrix
encrypts it, the other multiplies in ciphertext, subtracts a random share and packs the rest. The shares are SPU's own,
taken from its memory as they are. That is no interface of SPU, so its version is fixed, the form of every share is
checked, and a product whose result is known comes first.

SPU talks through the parties' own channel. So it needs no port, its bytes are counted and TLS covers them.

A product of groups multiplies matrices (rows, inner) and (inner, outputs) pairwise: channels by numbers of their own,
say. Several groups together make a matrix with blocks on its diagonal, until the result fills a ciphertext. Groups of
single numbers are multiplied element by element.
"""

import math
import re
from dataclasses import dataclass
from functools import cache
from importlib import metadata, util
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from deepshare.errors import EngineError
from deepshare.private.engines.spu.cheetah import TRIPLE_KEYS, Triples, product, work
from deepshare.private.runtime.engine import Part, Role

SPU_VERSION = "0.10.0.dev20251211"
_STORAGE = "cheetah.AShr<FM64>"
_PACKING = 2_000  # bytes that are worth the packing of a ciphertext, of which a core does some hundred a second
_WAIT_MILLISECONDS = 3_600_000  # longer than messages wait, so that theirs is the error
_RANKS: dict[Role, int] = {"server": 0, "client": 1}
# Large enough that the answer is packed, for which both make keys.
_TRIAL = (1024, 16, 8)
_SINGLE = (1, 1, 1)
_SINGLES = 1 << 17  # multiplied at once


Shapes = dict[str, tuple[int, ...]]
"""Of the client's factor A and the server's factor W."""


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


@dataclass(frozen=True)
class GroupedSize:
    """Sizes of a product of groups, which are public."""

    groups: int
    rows: int
    inner: int
    outputs: int

    def products(self) -> "list[Cut]":
        """The groups that are multiplied at once, and the size of that product."""
        return _cheapest(self)


Cut = tuple[slice, tuple[int, int, int]]


@cache
def _cheapest(size: GroupedSize) -> list[Cut]:
    """The way with the fewest bytes: so many groups at once, a power of two, with zeros in the inner dimension or not.

    Bytes are weighed against ciphertexts that have to be packed, which takes most of the time.
    """
    if (size.rows, size.inner, size.outputs) == _SINGLE:
        begins = range(0, size.groups, _SINGLES)
        return [(slice(begin, min(begin + _SINGLES, size.groups)), _SINGLE) for begin in begins]
    ways = []
    together = 1
    while together < 2 * size.groups:
        ways += [_cuts(size, together, padded) for padded in (False, True)]
        together *= 2
    return min(ways, key=lambda cuts: sum(_bytes(one) + _PACKING * work(*one) for _, one in cuts))


def _cuts(size: GroupedSize, together: int, padded: bool) -> list[Cut]:
    cuts = []
    for begin in range(0, size.groups, together):
        count = min(together, size.groups - begin)
        inner = count * size.inner
        if padded:
            inner = 1 << (inner - 1).bit_length()
        cuts.append((slice(begin, begin + count), (size.rows, inner, count * size.outputs)))
    return cuts


def _bytes(size: tuple[int, int, int]) -> int:
    cost = product(*size)
    return cost.server_bytes + cost.client_bytes


def product_cost(size: GroupedSize) -> Part:
    """Bytes of a product of groups, within some percent."""
    cuts, triples = size.products(), Triples(0)
    parts = [triples.product(cut.stop - cut.start) if one == _SINGLE else product(*one) for cut, one in cuts]
    if cuts[0][1] == _SINGLE:
        parts.append(TRIPLE_KEYS)
    return Part(
        server_bytes=sum(part.server_bytes for part in parts), client_bytes=sum(part.client_bytes for part in parts)
    )


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
        self._io, self._executables = spu.Io(2, config), dict[tuple[tuple[int, ...], ...], Any]()
        self._link = libspu.link.create_with_channels(desc, self._rank, ends)
        self._runtime = spu.Runtime(self._link, config)

    @classmethod
    def begin(cls, duplex: Messages, party: Role) -> Self:
        """Connect to the other party, which begins too, and multiply once for trial.

        Raises:
            EngineError: SPU is missing, or another one than is known, or it does not multiply as it did.
        """
        check_installed()
        encrypted = cls(duplex, party)
        encrypted._try()
        return encrypted

    def product(self, own: Tensor, size: tuple[int, int, int]) -> Tensor:
        """A share of A W, (rows, outputs).

        Args:
            own: A (rows, inner) of the client, W (inner, outputs) of the server.
            size: Rows, inner dimension, outputs.

        Raises:
            EngineError: The other party sent something else.
            ConnectionError: It is gone.
        """
        rows, inner, outputs = size
        return self._multiplied(own, {"A": (rows, inner), "W": (inner, outputs)}, (rows, outputs))

    def elements(self, own: Tensor) -> Tensor:
        """A share of the products of two vectors, element by element.

        Raises:
            EngineError: The other party sent something else.
            ConnectionError: It is gone.
        """
        shape = tuple(own.shape)
        return self._multiplied(own, {"A": shape, "W": shape}, shape)

    def _multiplied(self, own: Tensor, shapes: Shapes, result: tuple[int, ...]) -> Tensor:
        mine = "W" if self._rank == 0 else "A"
        try:
            for owner, name in ((1, "A"), (0, "W")):
                known = own.numpy() if name == mine else np.zeros(shapes[name], np.int64)
                secret = self._libspu.Visibility.VIS_SECRET
                self._runtime.set_var(name, self._io.make_shares(known, secret, owner)[self._rank])
            self._runtime.run(self._compiled(shapes))
            share = self._share("AW", result)
            for name in ("A", "W", "AW"):
                self._runtime.del_var(name)
        except RuntimeError as error:
            if self._duplex.error is not None:
                raise self._duplex.error from error
            raise EngineError(
                f"a product under encryption failed ({_reason(error)}): start both parties again"
            ) from error
        return share

    def groups(self, own: Tensor, size: tuple[int, int, int]) -> Tensor:
        """A share of the products of some groups, (groups, rows, outputs).

        Args:
            own: (groups, rows, inner) of the client, (groups, inner, outputs) of the server.
            size: As `GroupedSize.products` gives it.
        """
        rows, inner, _ = size
        if size == _SINGLE:
            return self.elements(own.reshape(-1).contiguous()).view(-1, 1, 1)
        if self._rank == 0:
            mine = torch.block_diag(*own)
            mine = torch.nn.functional.pad(mine, (0, 0, 0, inner - len(mine)))
        else:
            mine = own.transpose(0, 1).reshape(rows, -1)
            mine = torch.nn.functional.pad(mine, (0, inner - mine.shape[1]))
        share = self.product(mine.contiguous(), size)
        return share.view(rows, len(own), -1).transpose(0, 1)

    def _try(self) -> None:
        """Multiply matrices that both know, and compare."""
        rows, inner, outputs = _TRIAL
        A = torch.arange(rows * inner).view(rows, inner) * 0x5851F42D4C957F2D + 0x14057B7EF767814F
        W = (torch.arange(inner * outputs).view(inner, outputs) * 7919) % 65536 - 32768
        share = self.product(W if self._rank == 0 else A, _TRIAL)
        # Both send their whole share: it is of no secret.
        self._duplex.put("trial", share.numpy().tobytes())
        other = np.frombuffer(bytearray(self._duplex.get("trial")), np.int64)
        right = other.size == rows * outputs and torch.equal(share + torch.from_numpy(other).view(rows, outputs), A @ W)
        if not right:
            raise EngineError(
                f"this SPU multiplies wrongly, or the other party has another: install spu {SPU_VERSION} on both sides"
            )

    def _compiled(self, shapes: Shapes) -> Any:
        key = (shapes["A"], shapes["W"])
        if key not in self._executables:
            import jax
            from spu.utils import frontend

            secret = self._libspu.Visibility.VIS_SECRET
            with jax.enable_x64(True):
                form = jax.ShapeDtypeStruct
                arguments = [form(shape, np.int64) for shape in key]  # type: ignore[no-untyped-call]
                multiply = (lambda A, W: A * W) if len(key[0]) == 1 else (lambda A, W: A @ W)
                self._executables[key], _ = frontend.compile(
                    frontend.Kind.JAX, multiply, arguments, {}, ["A", "W"], [secret] * 2, lambda _: ["AW"]
                )
        return self._executables[key]

    def _share(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The raw share of a variable, if it has the form that is known."""
        share, meta = self._runtime.get_var(name), self._libspu.ValueMeta()
        meta.ParseFromString(share.meta)
        content = bytearray()
        for data in share.share_chunks:
            chunk = self._libspu.ValueChunk()
            chunk.ParseFromString(data)
            content += chunk.content
        if meta.storage_type != _STORAGE or len(content) != 8 * math.prod(shape):
            raise EngineError(
                f"SPU holds a share of {len(content)} bytes as {meta.storage_type}, and one of "
                f"{8 * math.prod(shape)} as {_STORAGE} is known: install spu {SPU_VERSION}"
            )
        return torch.frombuffer(content, dtype=torch.int64).view(shape)


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
