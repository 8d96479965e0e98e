"""The connection between the parties, with everything that a party sends counted."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistError, ProcessGroupGloo, ReduceOp

from deepshare.errors import EngineError
from deepshare.private.runtime.engine import Role

RANKS: dict[Role, int] = {"server": 0, "client": 1, "dealer": 2}

_CONNECT = timedelta(seconds=60)
# The longest that a party may compute without a word; one that dies is noticed at once.
_SILENCE = timedelta(minutes=30)


class GlooLink:
    """One party's end. It counts payload: eight bytes for each number that this party sends.

    Numbers go straight to the other party. CrypTen's own choice, gloo's reductions, takes twice the delays, and the one
    towards a single party passes sums through the other, which would show half of the logits to the server.

    Args:
        role: This party.
        addresses: Of all parties; they meet at the server's.

    Attributes:
        rank: 0 for the server, 1 for the client, 2 for the dealer.
        sent: Bytes sent.
        rounds: Exchanges with the other party.

    Raises:
        EngineError: The server's port is taken.
        ConnectionError: Another party does not connect.
    """

    def __init__(self, role: Role, addresses: Mapping[Role, str]) -> None:
        self.rank, self.sent, self.rounds = RANKS[role], 0, 0
        host, port = _split(addresses["server"])
        try:
            store = TCPStore(host, port, len(addresses), role == "server", _CONNECT)
        except DistError as error:
            if "address already in use" in str(error).lower() or "EADDRINUSE" in str(error):
                raise EngineError(f"port {port} of {host} is taken: try again") from error
            raise ConnectionError(f"nobody met at {host}:{port} within {_CONNECT.seconds} s") from error
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=_split(addresses[role])[0])]
        options._timeout = _CONNECT
        try:
            self._group: Any = ProcessGroupGloo(store, self.rank, len(addresses), options)
        except RuntimeError as error:
            raise ConnectionError("a party did not connect") from error
        self._group._set_default_timeout(_SILENCE)

    def exchange(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Send numbers to the other party and get as many from it, in one round; none take no round."""
        if not tensors:
            return []
        mine = torch.cat([tensor.flatten() for tensor in tensors])
        if not len(mine):
            return list(tensors)
        self.sent += mine.nbytes
        self.rounds += 1
        parts = self._swap(mine).split([tensor.numel() for tensor in tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def open(self, shares: Sequence[Tensor]) -> list[Tensor]:
        """Open numbers to both parties: the sums of their shares."""
        return [mine + theirs for mine, theirs in zip(shares, self.exchange(shares), strict=True)]

    def send(self, tensor: Tensor, to: Role) -> None:
        """Send numbers to one party."""
        self.sent += tensor.nbytes
        self._wait(self._group.send([tensor.contiguous()], RANKS[to], 0))

    def receive(self, size: Sequence[int], sender: Role) -> Tensor:
        """Get numbers from one party."""
        result = torch.empty(tuple(size), dtype=torch.long)
        self._wait(self._group.recv([result], RANKS[sender], 0))
        return result

    def meet(self) -> None:
        """Wait for the other party; not measured."""
        self._swap(torch.zeros(1, dtype=torch.long))

    def part(self) -> None:
        """Wait until all are done, so that nobody hangs up on another."""
        self._wait(self._group.barrier())

    def _swap(self, mine: Tensor) -> Tensor:
        theirs = torch.empty_like(mine)
        arrival = self._group.recv([theirs], 1 - self.rank, 0)
        self._wait(self._group.send([mine], 1 - self.rank, 0), arrival)
        return theirs

    @staticmethod
    def _wait(*works: Any) -> None:
        try:
            for work in works:
                work.wait()
        except RuntimeError as error:
            raise ConnectionError("the connection to another party broke") from error

    # CrypTen's interface of a communicator.

    def get_rank(self) -> int:
        """Number of this party."""
        return self.rank

    def get_world_size(self) -> int:
        """Number of parties that hold shares."""
        return 2

    def all_reduce(self, input: list[Tensor], op: Any = ReduceOp.SUM, batched: bool = True) -> list[Tensor]:
        """Open a list of tensors, added or xored."""
        if op != ReduceOp.BXOR:
            return self.open(input)
        return [mine ^ theirs for mine, theirs in zip(input, self.exchange(input), strict=True)]


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
