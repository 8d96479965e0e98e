"""Engines gateshare and gateshare-2pc: one message each way per activation and none for linear layers."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from deepshare.errors import EngineError, UnsupportedModelError
from deepshare.private.ir.program import (
    Convolution,
    GatedActivation,
    Linear,
    Operation,
    Program,
    SharedActivation,
    hidden_tensors,
)
from deepshare.private.runtime.engine import Role, SecondsModel, Task
from deepshare.private.runtime.outcome import Outcome, Part
from deepshare.private.runtime.preprocessing import Dealt, Host, HostedClient, Prepared
from deepshare.private.transport.channel import Channel

if TYPE_CHECKING:
    from deepshare.private.engines.gateshare.fixedpoint import ComparisonBits
    from deepshare.private.engines.gateshare.preprocessing.stock import Level


def _has_pool(options: Mapping[str, str]) -> bool:
    """Return True if the parties have pools instead of a dealer: option dealer=pool.

    Raises:
        EngineError: There is another option than that or comparison_bits.
    """
    if options and set(options) != {"comparison_bits"} and dict(options) != {"dealer": "pool"}:
        given = ", ".join(f"{name}={value}" for name, value in options.items())
        raise EngineError(f"engine gateshare has no option {given}: give dealer=pool, comparison_bits=BITS, or none")
    return "dealer" in options


def _comparison_bits(options: Mapping[str, str]) -> "ComparisonBits | None":
    """Bits of a comparison by option comparison_bits."""
    from deepshare.private.engines.gateshare.fixedpoint import COMPARISON_BITS, comparison_bits_of

    return comparison_bits_of(options[COMPARISON_BITS]) if COMPARISON_BITS in options else None


def _check_numbers(program: Program, *, dealt: bool = True) -> None:
    """Refuse numbers beyond the range of fixed point.

    Args:
        program: The program, or its outline.
        dealt: Whether a dealer makes lots; else the two parties do.

    Raises:
        UnsupportedModelError: Names each layer and what to do.
    """
    where: dict[str, list[str]] = {}
    for operation in program.operations:
        for problem in _problems(operation, dealt):
            where.setdefault(problem, []).append(operation.name)
    if not dealt and not where:
        for names, problem in _large_sums(program):
            where.setdefault(problem, []).append(names)
    if where:
        raise UnsupportedModelError([f"{', '.join(names)}: {problem}" for problem, names in where.items()])


def _problems(operation: Operation, dealt: bool) -> Iterator[str]:
    from deepshare.private.engines.gateshare.fixedpoint import AFFINE, AFFINE_LIMITS, PRODUCT_BITS, WEIGHT

    for field, tensor in hidden_tensors(operation).items():
        if tensor.is_meta:
            continue
        largest, limit = float(tensor.abs().max()), 2.0**20
        if isinstance(operation, Convolution | Linear) and field == "weight":
            limit = 2.0 ** (PRODUCT_BITS - WEIGHT)
        if not dealt and isinstance(operation, SharedActivation):
            limit = AFFINE_LIMITS[-1] - 2.0**-AFFINE
        if not dealt and isinstance(operation, GatedActivation) and field != "constant":
            limit = 2.0**12  # two of them are added under encryption
        if not largest <= limit:
            yield f"its {field} reaches {largest:.3g}, above {limit:g}: train with weight decay"


def _large_sums(program: Program) -> Iterator[tuple[str, str]]:
    """Layers whose weights are too large for encryption, together where they are added, and what to do."""
    from deepshare.private.engines.gateshare.crypto.hinted import LARGEST_SUM
    from deepshare.private.engines.gateshare.fixedpoint import WEIGHT
    from deepshare.private.engines.gateshare.protocols.linear import sums_under_encryption

    limit = LARGEST_SUM >> WEIGHT
    for layers, largest in sums_under_encryption(program, WEIGHT):
        if largest >= LARGEST_SUM:
            found = f"{largest / 2**WEIGHT:,.0f}, not below {limit:,} as encryption needs it"
            yield (
                " + ".join(program.operations[number].name for number in layers),
                f"weights of an output add up to {found}: train with weight decay, or take engine gateshare",
            )


class _Pools:
    """Pools on disk, whoever made their lots."""

    engine: str

    def check_pool(self, folder: Path, role: Literal["server", "client"]) -> None:
        """Refuse a folder that holds no finished pool of this party."""
        self.networks(folder, role)

    def networks(self, folder: Path, role: Literal["server", "client"]) -> set[str]:
        """Outlines that the pools are for."""
        from deepshare.private.engines.gateshare.preprocessing.pool import pools_in

        return {about["outline"] for _, about in pools_in(folder, role, self.engine)}

    def dealings(self, folder: Path) -> set[str]:
        """Dealings of the client's pools."""
        found = [level for level in self.levels(folder) if level.party == "client"]
        return {level.dealing for level in found if level.left} or {level.dealing for level in found}

    def levels(self, folder: Path) -> list["Level"]:
        """Stocks of pools."""
        from deepshare.private.engines.gateshare.preprocessing.stock import levels

        return levels(folder)

    def move_pool(self, new: Path, folder: Path) -> Path:
        """Move a pool into a folder."""
        from deepshare.private.engines.gateshare.preprocessing.stock import move_pool

        return move_pool(new, folder)

    def host(self, program: Program, pools: Sequence[Path]) -> Host:
        """Serve clients that share the weights and pools."""
        from deepshare.private.engines.gateshare.host import SessionHost

        return SessionHost(program, pools, self.engine)

    def client(self, program: Program, pool: Path, dealings: Collection[str]) -> HostedClient:
        """Ask such a server, with the client's pool."""
        from deepshare.private.engines.gateshare.hosted_client import PoolClient

        return PoolClient(program, pool, dealings, self.engine)


class DealerPools(_Pools):
    """The dealer's part in advance; see `runtime.preprocessing.Preprocessing`."""

    engine = "gateshare"
    options: Mapping[str, str] = {"dealer": "pool"}

    def write_outline(
        self, path: Path, program: Program, samples: Tensor | None, options: Mapping[str, str] | None = None
    ) -> None:
        """Write the outline and the number format of a network."""
        from deepshare.private.engines.gateshare.preprocessing import network_file

        bits = _comparison_bits(options or {})
        _check_numbers(program)
        network_file.write(path, program, samples, bits)

    def deal(
        self,
        outline: Path,
        folder: Path,
        *,
        images: int,
        clients: int,
        on_progress: Callable[[int, int], None],
        owners: Sequence[str] = (),
    ) -> Dealt:
        """Write lots for some images of each client, and a few to spare."""
        from deepshare.private.engines.gateshare.preprocessing import network_file
        from deepshare.private.engines.gateshare.preprocessing.pool import write_pools

        program, number_format = network_file.read(outline)
        return write_pools(folder, program, number_format, images, on_progress, clients, owners)

    def make(
        self, program: Program, folder: Path, channel: Channel, images: int, on_progress: Callable[[float, str], None]
    ) -> Prepared:
        """Refuse: lots are dealt."""
        raise EngineError("lots of gateshare are dealt: get a pool from the dealer, or take a server of gateshare-2pc")


class TwoPartyPools(_Pools):
    """Lots that the two parties make in advance; see `runtime.preprocessing.Preprocessing`."""

    engine = "gateshare-2pc"
    options: Mapping[str, str] = {"lots": "pool"}

    def write_outline(
        self, path: Path, program: Program, samples: Tensor | None, options: Mapping[str, str] | None = None
    ) -> None:
        """Refuse: nobody needs one."""
        raise EngineError("gateshare-2pc has no dealer that needs an outline: make lots with private prepare")

    def deal(
        self,
        outline: Path,
        folder: Path,
        *,
        images: int,
        clients: int,
        on_progress: Callable[[int, int], None],
        owners: Sequence[str] = (),
    ) -> Dealt:
        """Refuse: there is no dealer."""
        raise EngineError("gateshare-2pc has no dealer: make lots with private prepare")

    def make(
        self, program: Program, folder: Path, channel: Channel, images: int, on_progress: Callable[[float, str], None]
    ) -> Prepared:
        """Make lots with a server into the client's pool."""
        from deepshare.private.engines.gateshare.making import make_pool

        return make_pool(program, folder, channel, images, on_progress)


class Gateshare:
    """The engine; see `runtime.engine.Engine`. With the option dealer=pool the dealer has done its part beforehand."""

    name = "gateshare"
    trust = (
        "All parties must follow the protocol: a client that deviates reads exact weights, so serve only clients that "
        "you would trust with the model. A dealer hands out random numbers beforehand: it sees no image, weight "
        "or message, and must not work together with a party. Architecture, plan and number format are public. What "
        "logits tell about a network is not hidden, but for a little noise."
    )
    packages = ("cryptography",)
    install = "pip install cryptography"
    encrypts = True
    delays = 2.0
    preprocessing = DealerPools()

    def roles(self, options: Mapping[str, str]) -> tuple[Role, ...]:
        """All three, or two where both have a pool."""
        return ("server", "client") if _has_pool(options) else ("server", "client", "dealer")

    def check(self, program: Program, options: Mapping[str, str]) -> None:
        """Refuse options, and weights beyond the range of fixed point."""
        _has_pool(options)
        _comparison_bits(options)
        _check_numbers(program)

    def run(self, task: Task, ready: Callable[[], None]) -> Outcome:
        """Do one party's part."""
        from deepshare.private.engines.gateshare.main import run

        return run(task, ready)

    def predict(self, program: Program, count: int, options: Mapping[str, str]) -> tuple[Mapping[int, Part], Part]:
        """Costs as `run` measures them, without time: online exactly, offline if ranges are the usual ones."""
        from deepshare.private.engines.gateshare import cost_model

        bits = _comparison_bits(options)
        return cost_model.online(program, count), cost_model.offline(program, count, comparison_bits=bits)

    def predict_session(self, program: Program) -> Part:
        """Masked weights; see `runtime.engine.SessionEngine`."""
        from deepshare.private.engines.gateshare import cost_model

        return cost_model.session(program)

    def calibrate(self) -> SecondsModel:
        """Run small networks privately; see `runtime.engine.TimedEngine`."""
        from deepshare.private.engines.gateshare.timing import calibrate

        return calibrate()


class GateshareTwoParty:
    """The engine without a dealer: the two parties make the correlated randomness; see `runtime.engine.Engine`."""

    name = "gateshare-2pc"
    trust = (
        "Nobody but the two parties takes part, and both must follow the protocol: a client that deviates reads exact "
        "weights, so serve only clients that you would trust with the model. Architecture, plan and number format are "
        "public. What logits tell about a network is not hidden, but for a little noise."
    )
    packages = ("cryptography", "nacl")
    install = "pip install 'deepshare[2pc]'"
    encrypts = True
    delays = 2.0
    preprocessing = TwoPartyPools()

    def roles(self, options: Mapping[str, str]) -> tuple[Role, ...]:
        """Both parties."""
        return ("server", "client")

    def check(self, program: Program, options: Mapping[str, str]) -> None:
        """Refuse options, and weights beyond the range of fixed point."""
        if options and dict(options) != self.preprocessing.options:
            raise EngineError(f"engine {self.name} has no option {', '.join(sorted(options))}: leave it out")
        _check_numbers(program, dealt=False)

    def run(self, task: Task, ready: Callable[[], None]) -> Outcome:
        """Do one party's part."""
        from deepshare.private.engines.gateshare.main import run
        from deepshare.private.engines.gateshare.making import check_can_make, take_part

        if not task.options:
            check_can_make(task.program)
        return take_part(task, ready) if "request" in task.extras else run(task, ready, dealt=False)

    def predict(self, program: Program, count: int, options: Mapping[str, str]) -> tuple[Mapping[int, Part], Part]:
        """Costs as `run` measures them, without time: online exactly, offline too but for squares and products."""
        from deepshare.private.engines.gateshare import cost_model

        self.check(program, options)
        online = cost_model.online(program, count, dealt=False)
        return online, cost_model.offline(program, count, dealt=False)

    def predict_session(self, program: Program) -> Part:
        """Trees of alpha and beta, once per connection; see `runtime.engine.SessionEngine`."""
        from deepshare.private.engines.gateshare import cost_model

        return cost_model.session(program, dealt=False)


ENGINES = {"gateshare": Gateshare(), "gateshare-2pc": GateshareTwoParty()}
