"""What the gate-sharing protocol cannot do, found before anything starts."""

from collections.abc import Iterator, Mapping

from deepshare.errors import EngineError, UnsupportedModelError
from deepshare.private.engines.gateshare.fixedpoint import PRODUCT_BITS, WEIGHT
from deepshare.private.ir.program import Convolution, Linear, MaxPool, Operation, Program, hidden_tensors

LARGEST_WEIGHT = 2.0 ** (PRODUCT_BITS - WEIGHT)


def check(program: Program, options: Mapping[str, str]) -> None:
    """Refuse what is not there; see `deepshare.private.runtime.engine.Engine.check`."""
    has_pool(options)
    where: dict[str, list[str]] = {}
    for operation in program.operations:
        for problem in _problems(operation):
            where.setdefault(problem, []).append(operation.name)
    if where:
        raise UnsupportedModelError([f"{', '.join(names)}: {problem}" for problem, names in where.items()])


def has_pool(options: Mapping[str, str]) -> bool:
    """Whether the parties have pools instead of a dealer: option dealer=pool.

    Raises:
        EngineError: There is another option.
    """
    if options and dict(options) != {"dealer": "pool"}:
        given = ", ".join(f"{name}={value}" for name, value in options.items())
        raise EngineError(f"engine gateshare has no option {given}: give dealer=pool, or none")
    return bool(options)


def _problems(operation: Operation) -> Iterator[str]:
    if isinstance(operation, MaxPool):
        yield "gateshare has no max-pooling: train with average pooling, or take engine crypten"
    for field, tensor in hidden_tensors(operation).items():
        if tensor.is_meta:
            continue
        largest = float(tensor.abs().max())
        limit = LARGEST_WEIGHT if isinstance(operation, Convolution | Linear) and field == "weight" else 2.0**20
        if not largest <= limit:
            yield f"its {field} reaches {largest:.3g}, above {limit:g}: train with weight decay"
