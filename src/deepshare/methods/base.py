"""The interface of every method. The training loop is one and lives elsewhere; a method only says what is special."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, distributed, nn

T = TypeVar("T", bound=nn.Module)
Images = Callable[[int], Tensor]  # gives so many prepared training images, or all if there are fewer


class Method:
    """The plain network: nothing is converted, nothing is added to the loss, every phase runs to its end."""

    def convert(self, model: nn.Module) -> nn.Module:
        """Make the network that is trained; the given one is not touched."""
        return model

    def form(self, model: nn.Module, phase: str) -> None:
        """Give a converted network the modules that it has in a phase, in place; their values come from a file."""

    def begin(self, model: nn.Module, phase: str, images: Images) -> None:
        """Bring the network as the phase before left it into the form of a phase that starts, in place."""

    def watch(self, model: nn.Module, teacher: nn.Module, phase: str) -> nn.Module:
        """Make the teacher of a phase into one that the network can be compared with at every site."""
        return teacher

    def optimiser(
        self,
        model: nn.Module,
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        kind: Literal["sgd", "adam"] = "sgd",
    ) -> torch.optim.Optimizer:
        """Make the optimiser of a phase, over every parameter that the method trains; momentum is Adam's first beta."""
        groups = self.parameter_groups(model)
        if kind == "adam":
            return torch.optim.Adam(groups, lr=lr, betas=(momentum, 0.999), weight_decay=weight_decay)
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, weight_decay=weight_decay)

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Every parameter that the method trains, with what is special to some of them."""
        return [{"params": list(model.parameters())}]

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


def over_processes(values: Tensor) -> Tensor:
    """The mean of some values over all processes that train together."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return values
    total = values.clone()
    distributed.all_reduce(total)
    return total / distributed.get_world_size()


def swap(model: nn.Module, kind: type[T], make: Callable[[T], nn.Module]) -> None:
    """Put new modules in the place of all modules of a kind, on their device and in their mode."""
    made: dict[nn.Module, nn.Module] = {}
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, kind):
            if module not in made:
                device = next((value.device for value in module.state_dict().values()), torch.device("cpu"))
                made[module] = make(module).to(device).train(module.training)
            model.set_submodule(path, made[module])
