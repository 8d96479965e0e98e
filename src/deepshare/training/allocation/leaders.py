"""The leader that the data prefers: the site of a group whose gates say most about those of the others."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from deepshare.sharing.activation import hard_gate
from deepshare.sharing.convert import replace_sites
from deepshare.sharing.observe import like
from deepshare.sharing.plan import Plan
from deepshare.sharing.sites import Site, find_sites
from deepshare.training.allocation.files import measured_once
from deepshare.training.run.folder import RunFolder

if TYPE_CHECKING:
    from deepshare.training.trainer import Networks

SAMPLES = 512  # training images that gates are compared on


def choose(networks: "Networks", base: nn.Module) -> Sequence[str]:
    """Choose the leaders of groups by the gates of the trained plain network."""
    networks.begin(RunFolder(networks.out))
    plan, plain = networks.plan(base), networks.plain().to(networks.context.fabric.device)
    images = (images for images, _ in networks.draw(SAMPLES))
    path = networks.out / "leaders.json"
    scores = measured_once(networks.context.fabric, path, lambda: explained(plain, plan, images))
    return preferred(plan, scores)


def explained(network: nn.Module, plan: Plan, images: Iterable[Tensor]) -> dict[str, float]:
    """Return the share of the gates of its group, from 0 to 1, that each site would explain as the leader.

    A gate counts for the largest squared correlation that it has with a gate of the leader at the same position. Gates
    before the leader do not count, since gates are not available before they are computed; nor do constant gates.

    Args:
        network: Trained plain network; it is not modified.
        plan: Its groups.
        images: Batches of training images.
    """
    sites = find_sites(network, plan.input_size)
    watched = replace_sites(network, sites, lambda site: nn.ReLU()).eval()
    gates: dict[str, Tensor] = {}
    for site in sites:
        watched.get_submodule(site.name).register_forward_pre_hook(_keep(gates, site))
    pairs = [
        (leader.name, site.name)
        for group in plan.groups
        for number, leader in enumerate(group.sites)
        for site in group.sites[number:]
    ]
    counts = dict.fromkeys(pairs, torch.zeros(()))
    with torch.no_grad():
        for batch in images:
            watched(batch.to(like(watched)))
            counts = {(a, b): count + _counts(gates[a], gates[b]) for (a, b), count in counts.items()}
    channels = {site.name: len(group.sites) * site.channels for group in plan.groups for site in group.sites}
    found = dict.fromkeys(channels, 0.0)
    for (leader, _), count in counts.items():
        found[leader] += float(squared_correlations(count).amax(0).sum()) / channels[leader]
    return found


def preferred(plan: Plan, scores: dict[str, float]) -> list[str]:
    """Return the best site of each group; the first of equal ones."""
    return [max(group.sites, key=lambda site: scores[site.name]).name for group in plan.groups]


def _keep(gates: dict[str, Tensor], site: Site) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        opened = hard_gate(inputs[0].detach()).movedim(1, 0).flatten(1).float()
        gates[site.name] = torch.cat([opened, torch.ones_like(opened[:1])])

    return hook


def _counts(one: Tensor, two: Tensor) -> Tensor:
    """Count two gates open at once; the last row and column count each one alone, and the corner all positions."""
    return (one @ two.t()).double()


def squared_correlations(count: Tensor) -> Tensor:
    """Return squared correlations from the counts of two sites (C1 + 1, C2 + 1), see `_counts`; 0 for constant gates.

    >>> squared_correlations(torch.tensor([[3.0, 4.0], [4.0, 8.0]]).double())
    tensor([[0.2500]], dtype=torch.float64)
    """
    total, one, two = count[-1, -1], count[:-1, -1:], count[-1:, :-1]
    covariance = count[:-1, :-1] * total - one * two
    spread = one * (total - one) * two * (total - two)
    return torch.where(spread > 0, covariance.square() / spread.clamp(min=1), 0.0)
