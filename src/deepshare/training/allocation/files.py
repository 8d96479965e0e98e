"""Counts of gates in a JSON file: given by the user, or measured once and kept for a resumed run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from deepshare.errors import BudgetError
from deepshare.sharing.sites import Sites
from deepshare.training.recipe.allocation import Allocation, register
from deepshare.training.run.checkpoint import write_file

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@register()
class CountsFile(Allocation):
    """Counts that the user gives."""

    def read(self, sites: Sites) -> dict[str, float]:
        """Return the counts of the file."""
        return read_counts(Path(self.value))


def read_counts(path: Path) -> dict[str, float]:
    """Read a JSON file of {site: count}.

    Raises:
        BudgetError: The file cannot be read or holds something else.
    """
    try:
        counts = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BudgetError(
            f"cannot read {path}: {error.strerror}: allocate by uniform, senet, snl, or a JSON file of {{site: count}}"
        ) from None
    except ValueError as error:
        raise BudgetError(f"{path} is not JSON ({error}): give {{site: count}}") from None
    if not isinstance(counts, dict) or not all(type(count) in (int, float) for count in counts.values()):
        raise BudgetError(f'{path}: give one number for each site, such as {{"layer1.0.act1": 655, ...}}')
    return {name: float(count) for name, count in counts.items()}


def measured_once(fabric: "Fabric", path: Path, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Measure in the first process, and store the figures for the others and for a resumed run."""
    found: dict[str, float] = {}
    if fabric.is_global_zero:
        if not path.exists():
            write_file(path, (json.dumps(measure(), indent=1) + "\n").encode())
        found = read_counts(path)
    return fabric.broadcast(found)
