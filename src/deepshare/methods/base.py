"""The interface of every method. The training loop is one and lives elsewhere; a method only says what is special."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Method:
    """The plain network: nothing is converted, nothing is added to the loss, every phase runs to its end."""

    def convert(self, model: nn.Module) -> nn.Module:
        """Make the network that is trained; the given one is not touched."""
        return model

    def optimiser(self, model: nn.Module, *, lr: float, momentum: float, weight_decay: float) -> torch.optim.Optimizer:
        """Make the optimiser of a phase, over every parameter that the method trains."""
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)

    def start_epoch(self, model: nn.Module, phase: str, epoch: int, epochs: int) -> None:
        """Prepare the network for an epoch, counted from 0; called before every epoch, also after a resume."""

    def penalty(self, model: nn.Module) -> Tensor | None:
        """What is added to the loss of every step."""
        return None

    def end_epoch(self, model: nn.Module, phase: str, epoch: int) -> bool:
        """Look at the network after an epoch; True ends the phase."""
        return False

    def measures(self, model: nn.Module) -> dict[str, float]:
        """What the method adds to the line that is recorded of every epoch."""
        return {}

    def state(self) -> dict[str, float]:
        """What the method has to remember to be resumed, apart from the network's weights."""
        return {}

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue from what `state` gave."""
