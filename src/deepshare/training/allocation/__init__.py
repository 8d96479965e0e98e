"""Allocations: the share of the budget that each site gets, one file for each way to find it.

`deepshare.training.recipe.allocation` says what a file of this room may declare. Checking a recipe imports them all, so
the trainer and the loop are imported by the functions that train.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from deepshare.errors import BudgetError
from deepshare.sharing.sites import Sites
from deepshare.training.recipe.allocation import Allocation, Weights

if TYPE_CHECKING:
    from deepshare.training.trainer import Networks


class Trained(Allocation):
    """An allocation that is found by training."""

    def read(self, sites: Sites) -> Weights:
        """Refuse: say how to get the weights.

        Raises:
            BudgetError: Always.
        """
        raise BudgetError(
            f'{self.value} is measured in training: run deepshare train with budget.allocate = "{self.value}" and a '
            "[pilot], and give its pilot/weights.json here"
        )

    @abstractmethod
    def train(self, networks: "Networks", base: nn.Module, leaders: Sequence[str]) -> Weights:
        """Return the weights by training, for the untrained plain network and the leaders of groups."""
