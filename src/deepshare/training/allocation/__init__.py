"""Allocations: the share of the budget that each site gets, one file for each way to find it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from deepshare.errors import BudgetError
from deepshare.methods.senet_pruning import check_layers
from deepshare.sharing.sites import Sites
from deepshare.training.allocation import files, pruning, published, sensitivity, snl
from deepshare.training.trainer import Networks

Weights = Mapping[str, float] | None  # for `plan`, by site; None is the same share of channels everywhere


def _needs_pilot(allocate: str, sites: Sites) -> Weights:
    raise BudgetError(
        f'{allocate} is measured in training: run deepshare train with budget.allocate = "{allocate}" and a '
        "[pilot], and give its pilot/weights.json here"
    )


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """One way to divide a budget: read from the sites, or found by training.

    Attributes:
        read: Returns the weights for a value of `budget.allocate` and the sites, or refuses if they need training.
        train: Returns the weights by training, for the untrained plain network and the leaders of groups.
        check: Refuses an unsuitable network before anything is trained.
        continues_pilot: The result starts from the weights of its pilot.
    """

    read: Callable[[str, Sites], Weights] = _needs_pilot
    train: Callable[[Networks, nn.Module, Sequence[str]], Weights] | None = None
    check: Callable[[Sites], None] = lambda sites: None
    continues_pilot: bool = False


ALLOCATIONS = {
    "uniform": Allocation(read=lambda allocate, sites: None),
    "senet": Allocation(read=published.weights),
    "snl-densities": Allocation(read=published.weights),
    "snl": Allocation(train=snl.weights),
    "pruning": Allocation(train=pruning.weights, check=check_layers),
    "sensitivity": Allocation(train=sensitivity.weights, continues_pilot=True),
}
FILE = Allocation(read=files.weights)  # any other name is that of a file
