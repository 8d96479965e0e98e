"""Everything that DeepShare refuses, as one small tree of errors.

Each message is one line that names the thing and the cure. The command line prints it and exits with 2.
"""

from collections.abc import Sequence


def reason(error: BaseException) -> str:
    """The first line of what another library says, to be quoted in a line of ours."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


class DeepShareError(Exception):
    """The root of all errors that a user can cause.

    Attributes:
        told: Whether another process of the same run says it.
    """

    told = False


class UnsupportedModelError(DeepShareError):
    """A model that cannot be converted; carries every problem at once, each with its module and its cure."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("; ".join(self.problems))

    def __reduce__(self) -> tuple[type["UnsupportedModelError"], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


class BudgetError(DeepShareError):
    """A budget that no plan can meet; the message says what can."""


class PlanError(DeepShareError):
    """A plan file that is damaged, of a newer version or impossible."""


class PlanMismatchError(PlanError):
    """A plan that was made for another model; the message names each difference."""


class ModelNameError(DeepShareError):
    """A model name that nothing answers to; the message says the nearest."""


class RecipeError(DeepShareError):
    """A recipe with a wrong key or value; the message names the file and the key."""


class DataError(DeepShareError):
    """A data set that is missing, damaged or does not fit."""


class CheckpointError(DeepShareError):
    """A run folder that is half-written, damaged or belongs to something else."""


class HardwareError(DeepShareError):
    """Devices that are not there, or not so many of them."""


class ExportError(DeepShareError):
    """A model that could not be exported as asked."""


class EngineError(DeepShareError):
    """A failure of private inference; carries the other party's reason."""
