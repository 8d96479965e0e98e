"""Forward hooks that report the gates of every site: the sign of a site's input tells which of its gates are open."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from deepshare.errors import UnsupportedModelError
from deepshare.sharing.activation import hard_gate
from deepshare.sharing.convert import replace_sites
from deepshare.sharing.gates import SharedReLU, by_site
from deepshare.sharing.observe import like
from deepshare.sharing.planning import group_sites
from deepshare.sharing.sites import Site, find_sites

Groups = tuple[tuple[Site, ...], ...]
OnGates = Callable[[Site, Tensor], None]


@dataclass(frozen=True)
class Watched:
    """A network with a module per site, and its sites in the groups that share gates, or could.

    A gate is open where the input of a channel is not negative. In a network with shared gates this is the channel's
    own gate, not the shared one that it uses.
    """

    network: nn.Module
    groups: Groups

    @contextmanager
    def run(self, on_gates: OnGates) -> Iterator[Callable[[Tensor], None]]:
        """Yield the network in eval mode; each forward calls `on_gates` with every site and its gates (N, C, H, W)."""
        training = self.network.training
        hooks = [
            self.network.get_submodule(site.name).register_forward_pre_hook(_hook(on_gates, site))
            for group in self.groups
            for site in group
        ]
        try:
            yield self.network.eval()
        finally:
            self.network.train(training)
            for hook in hooks:
                hook.remove()


def _hook(on_gates: OnGates, site: Site) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        x = inputs[0].detach()
        on_gates(site, hard_gate(x).view(len(x), *site.shape))

    return hook


def watch(model: nn.Module, input_size: Sequence[int]) -> Watched:
    """Find the sites of a network with ReLUs, with shared gates, or with GELUs (a teacher).

    Args:
        model: The network; only its hooks change, and only while it runs.
        input_size: Size of one input without the batch dimension.

    Raises:
        UnsupportedModelError: The network has no gates, or its sites cannot be told apart.
    """
    sites = find_sites(model, input_size)
    if sites:
        return Watched(replace_sites(model, sites, lambda site: nn.ReLU()), tuple(group_sites(sites)))
    modules = {name: module for name, module in by_site(model) if isinstance(module, SharedReLU | nn.GELU)}
    found = _measure(model, modules, input_size)
    if not found:
        raise UnsupportedModelError(f"{type(model).__name__} has neither ReLUs nor shared gates: give another network")
    return Watched(model, _groups(found, modules))


def _measure(model: nn.Module, modules: Mapping[str, nn.Module], input_size: Sequence[int]) -> list[Site]:
    """Run the network once to record the order and shapes of the given activations."""
    found: list[Site] = []

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            channels, height, width = (*inputs[0].shape[1:], 1, 1)[:3]
            found.append(Site(name, channels, height, width, "module"))

        return note

    hooks = [module.register_forward_pre_hook(hook(name)) for name, module in modules.items()]
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, *input_size).to(like(model)))
    finally:
        model.train(training)
        for handle in hooks:
            handle.remove()
    twice = {site.name for site in found if [other.name for other in found].count(site.name) > 1}
    if twice:
        raise UnsupportedModelError(
            f"{', '.join(sorted(twice))}: called more than once: use a separate module for each call"
        )
    return found


def _groups(sites: Sequence[Site], modules: Mapping[str, nn.Module]) -> Groups:
    """Sites that share a gate cell; without cells, consecutive sites of equal shape."""
    cells: dict[int, list[Site]] = {}
    for site in sites:
        module = modules[site.name]
        if not isinstance(module, SharedReLU):
            return tuple(group_sites(sites))
        cells.setdefault(id(module.cell), []).append(site)
    return tuple(tuple(group) for group in cells.values())
