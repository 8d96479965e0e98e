"""Watch the gates of any network: every site has a module of its own, whose input says which gates are open."""

from collections.abc import Callable, Iterator, Sequence
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
from deepshare.sharing.plan import group_sites
from deepshare.sharing.sites import Site, find_sites

Groups = tuple[tuple[Site, ...], ...]
See = Callable[[Site, Tensor], None]


@dataclass(frozen=True)
class Watched:
    """A network and its sites, in groups: as they share their gates, or as they could.

    A gate is open where the input of a channel is not negative. In a network with shared gates, that is the gate which
    the channel would have of its own, not the one which it uses.
    """

    network: nn.Module
    groups: Groups

    @contextmanager
    def run(self, see: See) -> Iterator[Callable[[Tensor], None]]:
        """Give a function that runs the network on images; `see` gets every site with its gates, (N, C, H, W)."""
        training = self.network.training
        hooks = [
            self.network.get_submodule(site.name).register_forward_pre_hook(_seen_by(see, site))
            for group in self.groups
            for site in group
        ]
        try:
            yield self.network.eval()
        finally:
            self.network.train(training)
            for hook in hooks:
                hook.remove()


def _seen_by(see: See, site: Site) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        x = inputs[0].detach()
        see(site, hard_gate(x).view(len(x), *site.shape))

    return hook


def watch(model: nn.Module, input_size: Sequence[int]) -> Watched:
    """Find the sites of a network with ReLUs, with shared gates, or with GELU as teachers have it.

    Args:
        model: The network; at most its hooks are touched, and only while it runs.
        input_size: Size of one input without the batch.

    Raises:
        UnsupportedModelError: It has no gates, or they cannot be told apart.
    """
    sites = find_sites(model, input_size)
    if sites:
        return Watched(replace_sites(model, sites, lambda site: nn.ReLU()), tuple(group_sites(sites)))
    modules = dict(activations(model))
    found = _measure(model, modules, input_size)
    if not found:
        raise UnsupportedModelError(f"{type(model).__name__} has neither ReLUs nor shared gates: give another network")
    return Watched(model, _groups(found, modules))


def activations(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The activations with shared gates, or with GELU, by the names of their sites."""
    return ((name, module) for name, module in by_site(model) if isinstance(module, SharedReLU | nn.GELU))


def _measure(model: nn.Module, modules: dict[str, nn.Module], input_size: Sequence[int]) -> list[Site]:
    """Run the network once to see the order and the shapes of some activations."""
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
            f"{', '.join(sorted(twice))}: it runs more than once: give each run a module of its own"
        )
    return found


def _groups(sites: Sequence[Site], modules: dict[str, nn.Module]) -> Groups:
    """Those that share a cell; without cells, runs of equal shape."""
    cells: dict[int, list[Site]] = {}
    for site in sites:
        module = modules[site.name]
        if not isinstance(module, SharedReLU):
            return tuple(group_sites(sites))
        cells.setdefault(id(module.cell), []).append(site)
    return tuple(tuple(group) for group in cells.values())
