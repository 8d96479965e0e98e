"""Networks of the user that are already shared: their plan and their plain form, read from their activations."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from deepshare.sharing.gates import GateCell, SharedReLU, by_site, fading, shared_relus
from deepshare.sharing.plan import Group, Plan
from deepshare.sharing.sites import PoolReLU, Site


def is_shared(model: nn.Module) -> bool:
    """Return True if a network has shared gates."""
    return any(True for _ in shared_relus(model))


def unshared(model: nn.Module) -> nn.Module:
    """Copy a network with plain ReLUs in the place of shared gates."""
    plain = copy.deepcopy(model)
    for path, module in fading(model):
        plain.set_submodule(path, module.replaces())
    return plain


def plan_of(model: nn.Module, input_size: Sequence[int]) -> Plan:
    """Read the plan of a shared network by running a copy on the meta device; its budget is its number of gates."""
    shapes: dict[str, tuple[int, ...]] = {}
    twin = copy.deepcopy(model).to("meta").eval()

    def note(name: str, site: SharedReLU) -> None:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            shapes[name] = tuple(output.shape[1:])

        site.register_forward_hook(hook)

    sites = _shared(model)
    for name, site in _shared(twin).items():
        note(name, site)
    with torch.no_grad():
        twin(torch.zeros(1, *input_size, device="meta"))
    members: dict[GateCell, list[str]] = {}
    for name in shapes:
        members.setdefault(sites[name].cell, []).append(name)
    groups = [
        Group(sites[names[0]].prototypes, tuple(_site(name, shapes[name]) for name in names), sites[names[0]].patch)
        for names in members.values()
    ]
    first = next(site for site in sites.values() if site.replaces is not PoolReLU)
    gates = sum(group.gates for group in groups)
    return Plan(tuple(input_size), gates, tuple(groups), first.mapping, isinstance(first.alpha, nn.Parameter))


def _shared(model: nn.Module) -> dict[str, SharedReLU]:
    return {name: module for name, module in by_site(model) if isinstance(module, SharedReLU)}


def _site(name: str, shape: tuple[int, ...]) -> Site:
    height, width = shape[1:] if len(shape) == 3 else (1, 1)
    return Site(name, shape[0], height, width, "module", name.rpartition(".")[0])
