"""DeepShare's own sensitivities: the increase of a pilot's loss if a group of sites loses half of its gates."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from deepshare.methods import base as methods
from deepshare.methods.base import RecipeView
from deepshare.sharing.gates import SharedReLU, by_site
from deepshare.sharing.plan import Group, Plan
from deepshare.training.allocation import Trained
from deepshare.training.allocation.files import measured_once
from deepshare.training.recipe.allocation import register
from deepshare.training.run.folder import RunFolder

if TYPE_CHECKING:
    from deepshare.training.trainer import Networks

SAMPLES = 2048  # training images that the loss is measured on

Loss = Callable[[nn.Module], float]


@register("sensitivity", order=5)
class Sensitivity(Trained):
    """The loss that gates are worth."""

    needs_pilot: ClassVar = True
    continues_pilot: ClassVar = True

    def problem(self, recipe: RecipeView) -> str | None:
        """It needs shared gates, a pilot and its epochs with GELU after it."""
        if not recipe.method_class.has_replicates(recipe):
            sharing = ", ".join(methods.names(lambda method: method.replicates))
            return f'budget.allocate = "sensitivity" is measured on shared gates: it is for the method {sharing}'
        if not {"pilot", "gelu"} <= recipe.result_phases.keys():
            return 'budget.allocate = "sensitivity" is measured after the first epochs: it needs [pilot] and [gelu]'
        return None

    def train(self, networks: "Networks", base: nn.Module, leaders: Sequence[str]) -> dict[str, float]:
        """Train a pilot with the same share of channels in every group, and weight groups by its loss."""
        from deepshare.training.loop import mean_loss

        networks.begin(RunFolder(networks.out))
        plan = networks.plan(base, None, leaders)
        if plan.mapping == "learned":  # later, among the prototypes that there will be
            plan = replace(plan, mapping="round-robin")
        method, run = networks.method(base, plan), RunFolder(networks.out / "pilot")
        start, teacher = method.convert(networks.start()), networks.teacher()
        pilot = networks.train(run, "shared", start, method, ("pilot",), plan=plan, teacher=teacher)
        context = networks.context
        method.on_epoch_start(pilot.eval().to(context.fabric.device), "pilot", 0, 1)
        loss = mean_loss(networks.draw(SAMPLES), context.data.ignore)
        return measured_once(context.fabric, run.path / "weights.json", lambda: sensitivities(pilot, plan, loss))


def sensitivities(network: nn.Module, plan: Plan, loss: Loss) -> dict[str, float]:
    """Return weights of groups by the increase of the loss without the later half of their prototypes, rounded up.

    Let the k-th prototype of a group be worth a / k of the loss. The increase of the loss then gives a. Gates are best
    spent if the next prototype of every group is worth the same per gate, which is in proportion to a.

    Args:
        network: Trained network with gates as planned; it is not modified.
        plan: Its plan.
        loss: Loss of a network on a fixed set of images.

    Returns:
        Weights: a for the leader of each group, and 0 for all other sites.
    """
    with _mean_gates(network, plan) as means:
        whole = loss(network)
    found = {site.name: 0.0 for site in plan.sites}
    for group in plan.groups:
        kept = group.prototypes // 2
        rise = loss(without(network, group, kept, means()[group.leader.name])) - whole
        found[group.leader.name] = max(0.0, rise) / worth(kept, group.prototypes)
    return found


def worth(kept: int, prototypes: int) -> float:
    """Return the worth of all prototypes after the first `kept`, if the k-th is worth 1 / k.

    >>> worth(0, 1), worth(1, 2), worth(2, 4)
    (1.0, 0.5, 0.5833333333333333)
    """
    return sum(1 / k for k in range(kept + 1, prototypes + 1))


@torch.no_grad()
def without(network: nn.Module, group: Group, kept: int, means: Tensor) -> nn.Module:
    """Copy a network with constant gates for the later prototypes of a group, so that their channels are linear."""
    result = copy.deepcopy(network)
    for site in group.gated:
        module = _activation(result, site.name)
        lost = module.pi >= kept
        module.beta += module.alpha * means.to(module.alpha)[module.pi] * lost
        module.alpha *= ~lost
    return result


@contextmanager
def _mean_gates(network: nn.Module, plan: Plan) -> "Iterator[Callable[[], Mapping[str, Tensor]]]":
    """Watch the leaders while the network runs; yields a function for the mean gates of their prototypes."""
    sums = {group.leader.name: torch.zeros(group.prototypes, dtype=torch.float64) for group in plan.groups}
    counts = dict.fromkeys(sums, 0)

    def watch(name: str) -> Callable[[SharedReLU, tuple[Any, ...]], None]:
        def note(module: SharedReLU, inputs: tuple[Any, ...]) -> None:
            gates = module.gates_of(inputs[0].detach()).double().movedim(1, 0).flatten(1)
            sums[name] += gates.sum(1).cpu()
            counts[name] += gates.shape[1]

        return note

    hooks = [_activation(network, name).register_forward_pre_hook(watch(name)) for name in sums]
    try:
        yield lambda: {name: total / counts[name] for name, total in sums.items()}
    finally:
        for hook in hooks:
            hook.remove()


def _activation(network: nn.Module, name: str) -> SharedReLU:
    found = dict(by_site(network))[name]
    if not isinstance(found, SharedReLU):
        raise TypeError(f"{name} has no shared gates")
    return found
