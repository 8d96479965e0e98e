"""SENet: each site has a budget of its own, spent on the neurons that miss their ReLUs most.

In the search, activations are compared with those of the network with all ReLUs on the same images. After every epoch
the neurons with the largest sum of differences get the gates of their site. Then the gates are fixed and the network is
finetuned, with a loss on the distance between attention maps at the end of every stage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare.methods.base import Method, MethodContext, RecipeView, Settings, Weight, over_processes, register
from deepshare.methods.gated_polynomial import GatedPolynomial, site_budgets
from deepshare.sharing.convert import replace_sites
from deepshare.sharing.planning import group_sites
from deepshare.sharing.sites import Site, Sites, find_sites


class WatchedReLU(GatedPolynomial):
    """Activation that keeps its last output, to be compared with the teacher's."""

    difference: Tensor

    def __init__(self, site: Site) -> None:
        super().__init__(site.shape)
        self.site = site
        self.output: Tensor | None = None
        self.target: Tensor | None = None
        self.register_buffer("difference", torch.zeros(site.shape), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Activate, and keep the output in training."""
        y = super().forward(x)
        self.output = y if self.training else None
        return y

    @torch.no_grad()
    def compare(self, target: Tensor) -> None:
        """Keep the teacher's output for the same images, and sum up the differences."""
        self.target = target
        if self.output is not None:
            differences = (self.output.detach() - target).abs().sum(0)
            self.difference += over_processes(differences).view_as(self.difference)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "output": None, "target": None}


class Witness(nn.Module):
    """ReLU of the teacher that passes its output to a site of the network."""

    def __init__(self, site: WatchedReLU) -> None:
        super().__init__()
        self.sites = [site]  # in a list, so that it is no part of the teacher

    def forward(self, x: Tensor) -> Tensor:
        """Activate and pass on."""
        y = F.relu(x)
        self.sites[0].compare(y)
        return y


def largest(scores: Tensor, count: int) -> Tensor:
    """Return the mask of the `count` largest scores.

    >>> largest(torch.tensor([[1.0, 5.0], [3.0, 2.0]]), 2)
    tensor([[False,  True],
            [ True, False]])
    """
    chosen = scores.flatten().topk(count).indices
    return torch.zeros_like(scores, dtype=torch.bool).flatten().index_fill(0, chosen, True).view_as(scores)


def attention_distance(output: Tensor, target: Tensor) -> Tensor:
    """Mean squared difference of two normalised attention maps, mean_c y^2, over all positions and images."""
    one, two = (F.normalize(y.float().square().mean(1).reshape(len(y), -1), dim=1) for y in (output, target))
    return (one - two).square().mean()


class SENetSettings(Settings):
    """Gates where the network without them differs most from the one with all; attention in finetune."""

    attention: Weight = 1000.0  # weight of the distance between attention maps


@register("senet", order=5)
@dataclass
class SENet(Method):
    """Budgets of the sites, a search for their gates, and a loss on attention.

    Attributes:
        input_size: Size of one input without the batch.
        gates: The budget.
        attention: Weight of the distance between attention maps in finetune.
        weights: Weights of the sites in the division of the budget; by default their neurons.
        seed: Seed of the initial gates, which are random.
    """

    input_size: Sequence[int]
    gates: int
    attention: float = 1000.0
    weights: Mapping[str, float] | None = None
    seed: int = 0
    phase: str = field(default="search", init=False)
    moved: float = field(default=0.0, init=False)

    phases: ClassVar = ("search", "finetune")
    section: ClassVar = SENetSettings
    divides_budget: ClassVar = True
    compares_with_start: ClassVar = True

    @classmethod
    def from_recipe(cls, recipe: RecipeView, context: MethodContext) -> Self:
        """Take the settings of [senet]."""
        attention = recipe.section(SENetSettings).attention
        return cls(context.input_size, context.gates, attention, context.weights, seed=context.seed("gates"))

    def convert(self, model: nn.Module) -> nn.Module:
        """Put random gates at every site of a plain network, within the budget of the site."""
        sites = find_sites(model, self.input_size)
        counts = self.counts(sites)
        network = replace_sites(model, sites, WatchedReLU)
        generator = torch.Generator().manual_seed(self.seed)
        for site in _watched(network).values():
            site.set_mask(largest(torch.rand(site.site.shape, generator=generator), counts[site.site.name]))
        return network

    def counts(self, sites: Sites) -> dict[str, int]:
        """Return the budget of each site."""
        return site_budgets(sites, self.gates, self.weights)

    def wrap_teacher(self, model: nn.Module, teacher: nn.Module, phase: str) -> nn.Module:
        """Pass every output of the teacher to the site of the network."""
        sites = _watched(model)
        return replace_sites(teacher, find_sites(teacher, self.input_size), lambda site: Witness(sites[site.name]))

    def on_epoch_start(self, model: nn.Module, phase: str, epoch: int, epochs: int) -> None:
        """Reset the differences."""
        self.phase = phase
        for site in _watched(model).values():
            site.difference.zero_()

    def penalty(self, model: nn.Module) -> Tensor | None:
        """Penalise the distance of attention maps at the last site of every stage, in `finetune`."""
        if self.phase != "finetune":
            return None
        watched = _watched(model)
        stages = [watched[run[-1].name] for run in group_sites([site.site for site in watched.values()])]
        pairs = [(site.output, site.target) for site in stages]
        distances = [attention_distance(one, two) for one, two in pairs if one is not None and two is not None]
        return self.attention * torch.stack(distances).sum() if distances else None

    def on_epoch_end(self, model: nn.Module, phase: str, epoch: int) -> bool:
        """Give the gates of each site to the neurons that differ most, in `search`."""
        if phase == "search":
            sites = _watched(model).values()
            before = [site.mask.clone() for site in sites]
            for site in sites:
                site.set_mask(largest(site.difference, site.gates))
            changed = sum(int((old != site.mask).sum()) for old, site in zip(before, sites, strict=True))
            self.moved = changed / (2 * self.gates)
        return False

    def measures(self, model: nn.Module) -> dict[str, float]:
        """Record the gates, and the share that moved after the previous epoch: the normalised Hamming distance."""
        return {"gates": float(sum(site.gates for site in _watched(model).values())), "moved": self.moved}

    def state(self) -> dict[str, float]:
        """Return the share of gates that moved."""
        return {"moved": self.moved}

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore the share of gates that moved."""
        self.moved = state["moved"]


def _watched(model: nn.Module) -> dict[str, WatchedReLU]:
    return {module.site.name: module for module in model.modules() if isinstance(module, WatchedReLU)}
