"""Errors that a user can cause.

Every message is one line that names the problem and how to fix it. The command line prints it and exits with code 2.
"""

from collections.abc import Sequence


def reason(error: BaseException) -> str:
    """First line of another library's error message, to quote in one of ours."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


class DeepShareError(Exception):
    """Base class of all errors that a user can cause.

    Attributes:
        reported_elsewhere: True if another process of the same run reports the error.
    """

    reported_elsewhere = False


class UnsupportedModelError(DeepShareError):
    """A model cannot be converted; lists all problems, each with its module and how to fix it."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("; ".join(self.problems))

    def __reduce__(self) -> tuple[type["UnsupportedModelError"], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


class BudgetError(DeepShareError):
    """A budget cannot be met; the message states the minimum."""


class PlanError(DeepShareError):
    """A plan file is damaged, inconsistent or of a newer version."""


class PlanMismatchError(PlanError):
    """A plan was made for another model; the message names every difference."""


class ModelNameError(DeepShareError):
    """A model name is unknown; the message suggests the closest one."""


class RecipeError(DeepShareError):
    """A recipe has a wrong key or value; the message names the file and the key."""


class DataError(DeepShareError):
    """A data set is missing, damaged or unsuitable."""


class CheckpointError(DeepShareError):
    """A run folder is incomplete, damaged or belongs to another run."""


class HardwareError(DeepShareError):
    """A device is missing, or there are too few of them."""


class ExportError(DeepShareError):
    """A model could not be exported."""


class EngineError(DeepShareError):
    """Private inference failed; carries the other party's reason."""
