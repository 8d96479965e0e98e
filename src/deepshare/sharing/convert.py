"""Conversion of a network into one with shared gates."""

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from deepshare.errors import DeepShareError, UnsupportedModelError
from deepshare.sharing.gates import Around, GateCell, GateModule, SharedReLU
from deepshare.sharing.observe import copy_of, like, observe
from deepshare.sharing.plan import Plan
from deepshare.sharing.sites import RELUS, Compares, Place, Site, Sites, find_sites
from deepshare.sharing.trace import rewrite

Make = Callable[[Site], nn.Module]


def share(
    model: nn.Module,
    plan: Plan,
    *,
    start: Literal["identity", "uniform"] = "identity",
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Return a copy of a model whose ReLUs share their gates according to a plan.

    The copy keeps the weights and the state_dict keys of the model and adds an alpha and a beta for every channel of
    every site with a gate. Its gates are hard; `set_progress` makes them soft for training.

    Args:
        model: The network that the plan was made for; it is not modified.
        plan: From `plan`, or loaded from a file.
        start: Initial affine map: alpha 1 and beta 0, or both uniform in [-1, 1].
        generator: Source of the uniform values.

    Raises:
        PlanMismatchError: The plan was made for another model.
        UnsupportedModelError: A ReLU call cannot be replaced; all such calls are named, each with its cure.
    """
    if start not in ("identity", "uniform"):
        raise DeepShareError(f"start {start!r} is unknown: give identity or uniform")
    sites = find_sites(model, plan.input_size)
    plan.check(sites)
    made = {site.name: module for site, module in _activations(plan, {site.name: site.compares for site in sites})}
    shared = replace_sites(model, sites, lambda site: made.get(site.name) or nn.Identity())
    if start == "uniform":
        for module in made.values():
            module.start_uniform(generator)
    return shared


def _activations(plan: Plan, compares: Mapping[str, Compares]) -> Iterator[tuple[Site, SharedReLU]]:
    """A module for each site with a gate; max-pooling that keeps all its gates has no alpha and beta: it is exact."""
    for group in plan.groups:
        cell = GateCell()
        exact = compares[group.leader.name] == "pool" and group.prototypes == group.leader.channels
        for position, site in enumerate(group.gated):
            activation = SharedReLU(
                site.channels,
                group.prototypes,
                mapping=plan.mapping,
                affine=plan.affine and not exact,
                cell=cell,
                position=position,
                patch=group.patch,
            )
            activation.replaces, activation.planned = RELUS[compares[site.name]], (site.height, site.width)
            yield site, activation


def replace_sites(model: nn.Module, sites: Sites, make: Make) -> nn.Module:
    """Return a copy of a model with a separate module for every ReLU call.

    Args:
        model: The network; it is not modified.
        sites: Its sites, from `find_sites`.
        make: Creates the module for a site.

    Raises:
        UnsupportedModelError: A call cannot be replaced; all such calls are named, each with its cure.
    """
    result = copy_of(model)
    modules = {place.site.name: make(place.site) for place in sites.places}
    _match(modules.values(), model)
    for place in sites.places:
        if place.rewrites:
            modules[place.site.name] = Overwrite(modules[place.site.name])
    problems = list(_trace(result, sites.places, modules))
    if problems:
        raise UnsupportedModelError(problems)
    _swap(result, sites.places, modules)
    _verify(result, sites, modules)
    return result


def _match(modules: Iterable[nn.Module], model: nn.Module) -> None:
    """Give new modules the mode, device and dtype of the model."""
    for module in modules:
        module.train(model.training).to(like(model))


def _trace(model: nn.Module, places: Sequence[Place], modules: Mapping[str, nn.Module]) -> Iterator[str]:
    """Rewrite the callers of calls that swapping cannot reach; yield the problems."""
    calls = Counter(place.caller for place in places)
    callers: defaultdict[str, list[Place]] = defaultdict(list)
    for place in places:
        if not place.attributes:
            callers[place.caller].append(place)
    for caller, todo in callers.items():
        path = caller or type(model).__name__
        if todo[0].runs > 1:
            yield f"{path}: it runs {todo[0].runs} times in one forward pass: give each run a module of its own"
            continue
        new = {place.position: (place.site.name.rpartition(".")[2], modules[place.site.name]) for place in todo}
        try:
            rewrite(model.get_submodule(caller), path, new, calls[caller], todo[0].inputs)
        except UnsupportedModelError as error:
            yield str(error)


def _swap(model: nn.Module, places: Sequence[Place], modules: Mapping[str, nn.Module]) -> None:
    for place in places:
        for path in place.attributes:
            model.set_submodule(path, modules[place.site.name])


def _verify(model: nn.Module, sites: Sites, modules: Mapping[str, nn.Module]) -> None:
    """Run the result to check that every planned call was converted."""
    seen = observe(model, sites.input_size)
    ran = [name for name in seen.order if name in modules]
    left = [call.caller for call in seen.calls if not _within(call.relu or call.caller, modules)]
    if ran != list(modules) or left:
        raise UnsupportedModelError(
            f"{len(ran)} of {len(modules)} ReLU calls were converted and {len(left)} remain "
            f"({', '.join(left) or 'none'}): give each ReLU call an nn.ReLU module of its own"
        )


def _within(path: str, names: Iterable[str]) -> bool:
    return any(path == name or path.startswith(name + ".") for name in names)


class Overwrite(Around):
    """An activation that overwrites its input, like the in-place ReLU that it replaces."""

    def forward(self, x: Tensor) -> Tensor:
        """Activate a copy, which autograd may keep, and overwrite the original."""
        return x.copy_(self.activation(x.clone()))


def count_gates(model: nn.Module, input_size: Sequence[int]) -> int:
    """Count the gates that a model computes per image: those of leaders and patches, and remaining ReLUs.

    Gates are counted at run time, on a meta copy of the model.

    Raises:
        PlanMismatchError: The model is shared by a plan for another input size.
    """
    return sum(site_gates(model, input_size).values())


def site_gates(model: nn.Module, input_size: Sequence[int]) -> dict[str, int]:
    """Count the gates of a model by site, as `count_gates` does; omit sites without gates."""
    seen = observe(model, input_size)
    modules = dict(model.named_modules())
    for name, shape in seen.maps.items():
        if isinstance(site := modules.get(name), SharedReLU):
            site.check_map(name, shape)
    counted = [(call.caller if call.relu is None else call.relu, torch.Size(call.shape).numel()) for call in seen.calls]
    counted += [(o.name, o.comparisons) for o in seen.others if isinstance(modules.get(o.name), GateModule)]
    found: dict[str, int] = {}
    for path, gates in counted:
        name = _site_name(path, modules)
        found[name] = found.get(name, 0) + gates
    return found


def _site_name(path: str, modules: Mapping[str, nn.Module]) -> str:
    """Path of the module at a site, given the path of the activation inside it."""
    outer = path.rpartition(".")[0]
    within = outer in modules and isinstance(around := modules[outer], Around) and around.activation is modules[path]
    return _site_name(outer, modules) if path and within else path


def relu6_to_relu(model: nn.Module) -> nn.Module:
    """Return a copy of a model with nn.ReLU instead of nn.ReLU6, which costs two comparisons per neuron."""
    if isinstance(model, nn.ReLU6):
        return nn.ReLU(inplace=model.inplace)
    result = copy.deepcopy(model)
    for path, module in list(result.named_modules(remove_duplicate=False)):
        if isinstance(module, nn.ReLU6):
            result.set_submodule(path, nn.ReLU(inplace=module.inplace).train(module.training))
    return result
