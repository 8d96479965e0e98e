"""Engines spu-cheetah and spu-semi2k: two parties on the runtime of SecretFlow, in fixed point of 64 bits.

Every operation is compiled by itself, so that its cost can be read from the runtime. A party's own numbers stay with
it until an operation combines them with the other party's: its result is shared. On CHEETAH alpha, beta and the
coefficients of polynomials go into the weights after them where that sends less; on SEMI2K weights and gates are opened
behind a mask once, and serve all further products.

There are wheels of SPU for CPython 3.11 under Linux on x86-64 alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deepshare.errors import EngineError, UnsupportedModelError
from deepshare.private.engines.spu.protocol import CHEETAH, LIMIT, SEMI2K, Protocol
from deepshare.private.ir.program import Program
from deepshare.private.runtime.engine import Role, Task, check_gives_logits, check_numbers
from deepshare.private.runtime.outcome import Outcome, Part


@dataclass
class Spu:
    """See `deepshare.private.runtime.engine.Engine`; it has no options.

    Attributes:
        name: As on the command line.
        protocol: Its protocol.
        trust: Its trust assumptions.
    """

    name: str
    protocol: Protocol
    trust: str

    packages = ("spu", "jax")
    install = "pip install 'deepshare[spu]'"
    encrypts = True
    preprocessing = None
    delays = 1.0  # sends do not wait

    def roles(self, options: Mapping[str, str]) -> tuple[Role, ...]:
        """The two parties."""
        return ("server", "client")

    def check(self, program: Program, options: Mapping[str, str]) -> None:
        """Refuse options, gates over patches, and numbers beyond the range of fixed point."""
        self._refuse(options)
        check_gives_logits(program, self.name)
        patched = [operation.name for operation in program.operations if getattr(operation, "cells", None) is not None]
        if patched:
            other = "take engine gateshare or crypten, or plan without patches"
            raise UnsupportedModelError([f"{name}: {self.name} has no gates over patches: {other}" for name in patched])
        check_numbers(program, LIMIT)

    def _refuse(self, options: Mapping[str, str]) -> None:
        if options:
            raise EngineError(f"engine {self.name} has no option {', '.join(sorted(options))}: leave it out")

    def run(self, task: Task, ready: Callable[[], None]) -> Outcome:
        """Do one party's part."""
        from deepshare.private.engines.spu.party import run

        return run(self.protocol, task, ready)

    def predict(self, program: Program, count: int, options: Mapping[str, str]) -> tuple[Mapping[int, Part], Part]:
        """The cost that `run` measures, without the time; nothing is done offline."""
        from deepshare.private.engines.spu.registry import online

        self._refuse(options)
        return online(program, self.protocol, count), Part()


ENGINES = {
    engine.name: engine
    for engine in (
        Spu(
            "spu-cheetah",
            CHEETAH,
            "Nobody else is trusted: if both parties follow the protocol, the server learns nothing, and the client "
            "nothing but the logits. Weights and images leave their party encrypted or not at all. The architecture, "
            "the plan and masks are known to both.",
        ),
        Spu(
            "spu-semi2k",
            SEMI2K,
            "The server knows the seeds of the random numbers that hide the images, and could read them: for measuring "
            "only. If both follow the protocol, the client learns nothing but the logits. The architecture, the plan "
            "and masks are known to both.",
        ),
    )
}
