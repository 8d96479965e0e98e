"""Engine crypten: two parties with secret shares in fixed point, and a trusted dealer of random numbers.

Comparisons are CrypTen's own circuit. Products are Beaver's, as CrypTen's are, with two differences. A masked number is
opened once and serves all its products: weights, alpha and beta once for all images, a value once for all
layers that read it, and a gate once for all channels and layers that share it. And the products of the masks are dealt
for more than two factors, so that x (alpha gate + beta) takes one opening of x and one truncation.
"""

from collections.abc import Callable, Mapping

from deepshare.errors import EngineError
from deepshare.private.engines.crypten.fixed import LIMIT
from deepshare.private.ir.program import Program
from deepshare.private.runtime.engine import Role, Task, check_gives_logits, check_numbers
from deepshare.private.runtime.outcome import Outcome, Part

PROVIDERS = ("tfp", "ttp")


def provider(options: Mapping[str, str]) -> str:
    """The engine's one option, the dealer of random numbers: tfp, the trusted first party, or ttp, a third party.

    Raises:
        EngineError: Another option or value.
    """
    unknown = set(options) - {"provider"}
    if unknown:
        raise EngineError(f"engine crypten has no option {', '.join(sorted(unknown))}: its only one is provider")
    chosen = options.get("provider", PROVIDERS[0])
    if chosen not in PROVIDERS:
        raise EngineError(f"engine crypten has no provider {chosen}: take one of {', '.join(PROVIDERS)}")
    return chosen


class Crypten:
    """See `runtime.engine.Engine`."""

    name = "crypten"
    trust = (
        "Both parties must follow the protocol. With provider=tfp, the default, the server deals the random numbers "
        "that hide the images and could read them: for measuring only. With provider=ttp a third process deals them, "
        "and could read everything together with a party. Masks come from a Mersenne Twister with seeds of 32 bits, "
        "which can be guessed, and nothing is encrypted on the network."
    )
    packages = ("crypten", "omegaconf", "antlr4", "yaml", "onnx")
    install = "pip install --no-deps crypten==0.4.1 && pip install omegaconf antlr4-python3-runtime==4.9.3 pyyaml onnx"
    encrypts = False
    preprocessing = None
    delays = 2.0  # gloo asks before it sends

    def roles(self, options: Mapping[str, str]) -> tuple[Role, ...]:
        """The server, the client, and the dealer where a third party is trusted."""
        return ("server", "client", "dealer") if provider(options) == "ttp" else ("server", "client")

    def check(self, program: Program, options: Mapping[str, str]) -> None:
        """Refuse unknown options, and numbers beyond the range of fixed point."""
        provider(options)
        check_gives_logits(program, self.name)
        check_numbers(program, LIMIT)

    def run(self, task: Task, ready: Callable[[], None]) -> Outcome:
        """Do one party's part."""
        from deepshare.private.engines.crypten.party import run

        return run(task, provider(task.options), ready)

    def predict(self, program: Program, count: int, options: Mapping[str, str]) -> tuple[Mapping[int, Part], Part]:
        """The cost that `run` measures, to the byte and the round, without the time."""
        from deepshare.private.engines.crypten.operations import BYTES
        from deepshare.private.engines.crypten.registry import IMPLEMENTATIONS

        provider(options)
        opened: set[int] = set()
        parts, dealt = {}, 0
        for number, operation in enumerate(program.operations):
            kind, fresh = IMPLEMENTATIONS[type(operation)], 0
            if kind.opens_input:
                fresh = sum(program.operations[source].elements for source in set(operation.inputs) - opened)
                opened.update(operation.inputs)
            parts[number] = _times(kind.online(operation, fresh), count)
            dealt += kind.dealt(operation)
        logits = count * program.operations[-1].elements * BYTES
        parts[len(program.operations) - 1] += Part(server_bytes=logits, rounds=1)
        # Without a dealer a trusted first party would have to send as much.
        return parts, Part(dealer_bytes=count * dealt * BYTES)


def _times(part: Part, images: int) -> Part:
    return Part(**{name: value if name == "rounds" else value * images for name, value in vars(part).items()})


ENGINES = {"crypten": Crypten()}
