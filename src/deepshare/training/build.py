"""The networks, the plan and the method of a recipe, built from it, and networks read back from run folders."""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepshare.data.batching import seed_of
from deepshare.errors import CheckpointError, DataError, PlanMismatchError, RecipeError, UnsupportedModelError, reason
from deepshare.methods.base import Method, MethodContext
from deepshare.sharing.convert import relu6_to_relu, replace_sites
from deepshare.sharing.observe import other_channels
from deepshare.sharing.piecewise import REACH, rewritten
from deepshare.sharing.plan import Plan
from deepshare.sharing.planning import Grouping, group_sites, parse_budget, plan
from deepshare.sharing.sites import Site, find_sites
from deepshare.text import nearest
from deepshare.training.pretrained import start_from
from deepshare.training.recipe.files import Recipe, load_recipe
from deepshare.training.recipe.schema import Budget, Model
from deepshare.training.run import networks
from deepshare.training.run.checkpoint import Kind, WeightsHeader, fill, plan_checksum, read_weights
from deepshare.training.run.folder import RunFolder, run_folder
from deepshare.training.shared_models import unshared
from deepshare.zoo.names import build as build_network
from deepshare.zoo.names import promises_weights


def plain_network(recipe: Recipe, role: str, note: Callable[[str], None] | None = None) -> nn.Module:
    """Build the network that a recipe names for a role; its random weights depend on the seed and on the role.

    Args:
        recipe: Recipe with the network, and its start weights if there are any.
        role: Role of the network, such as teacher or plain.
        note: Called with a message if start weights leave a part of the network random, or a name promises some.
    """
    wanted = recipe.model_of(role)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(recipe.seed, "start", role))
        model = build(wanted)
    if wanted.weights:
        left = start_from(model, Path(wanted.weights), wanted.num_classes)
        if left and note:
            note(f"weights from {wanted.weights}; still random: {', '.join(left)}")
    elif note and promises_weights(wanted.name):
        note(f"{wanted.name}: no weights are fetched, so it starts from random ones: give them with --weights")
    return model


def build(wanted: Model, reach: int = REACH) -> nn.Module:
    """Build a network as a recipe describes it, with random weights; the reach is that of `rewritten`."""
    model = build_network(wanted.name, num_classes=wanted.num_classes, **wanted.arguments)
    model = relu6_to_relu(model) if wanted.relu6_to_relu else model
    keys = ("piecewise_to_relu", "smooth_to_relu", "maxpool")
    chosen = {key: value for key in keys if (value := getattr(wanted, key))}
    return rewritten(model, **chosen, reach=reach) if chosen else model


def output_shape(model: nn.Module, input_size: tuple[int, ...]) -> torch.Size:
    """Return the shape of a network's output for one image.

    Raises:
        DataError: The network does not take images of this size.
        UnsupportedModelError: Its output is not one tensor.
    """
    twin = copy.deepcopy(model).to("meta").eval()
    try:
        with torch.no_grad():
            output = twin(torch.zeros(1, *input_size, device="meta"))
    except Exception as error:  # libraries assert what they need
        size = "x".join(map(str, input_size))
        raise DataError(
            f"{type(model).__name__} does not take images of {size} ({reason(error)}): "
            + (other_channels(model, input_size) or "change data.image_size, or the network's own arguments")
        ) from error
    if not isinstance(output, torch.Tensor):
        kind = type(output).__name__
        raise UnsupportedModelError(f"{type(model).__name__} returns a {kind}: wrap it so that it returns logits")
    return output.shape


def layout_of(model: nn.Module, input_size: Sequence[int]) -> torch.memory_format:
    """Return the memory format to train in: channels last where that is safe, a quarter faster on a CPU.

    A network may view a map as a vector, which it cannot in that format.

    The backward of oneDNN's strided 1x1 convolution in channels last writes past its buffer if there are fewer channels
    than in one of its blocks (oneDNN issue 6035): 8 with AVX2, 16 with AVX-512.
    """
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    unsafe = any(
        c.kernel_size == (1, 1) and c.stride != (1, 1) and c.in_channels // c.groups < 16 for c in convolutions
    )
    if unsafe or not convolutions or not _runs_in_channels_last(model, input_size):
        return torch.contiguous_format
    return torch.channels_last


def _runs_in_channels_last(model: nn.Module, input_size: Sequence[int]) -> bool:
    twin, images = copy.deepcopy(model).cpu().float().eval(), torch.zeros(2, *input_size)
    if images.dim() != 4:
        return False
    try:
        with torch.no_grad():
            lay_out(twin, torch.channels_last)(images.contiguous(memory_format=torch.channels_last))
    except RuntimeError:
        return False
    return True


def lay_out(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    """Convert the weights of convolutions to a memory format."""
    for weight in model.parameters():
        if weight.ndim == 4:
            # A 1x1 kernel is laid out both ways at once; what is new has the strides that gradients will have.
            weight.data = torch.empty_like(weight.data, memory_format=layout).copy_(weight.data)
    return model


def gelu_network(model: nn.Module, input_size: Sequence[int]) -> nn.Module:
    """Copy a network with GELU in the place of every ReLU."""
    return replace_sites(model, find_sites(model, input_size), lambda site: nn.GELU())


def budget_of(recipe: Recipe) -> Budget:
    """Return the budget of a recipe whose method has one.

    Raises:
        RecipeError: It has none.
    """
    if recipe.budget is None:
        raise RecipeError(f"{recipe.name} has no [budget]")
    return recipe.budget


def make_method(
    recipe: Recipe,
    base: nn.Module,
    input_size: Sequence[int],
    *,
    plan: Plan | None = None,
    weights: Mapping[str, float] | None = None,
    given: bool = False,
    dry: bool = False,
) -> Method:
    """Make the method of a recipe.

    Args:
        recipe: Recipe with its name, budget and settings.
        base: The plain network.
        input_size: Size of one input without the batch.
        plan: Plan of a method that shares gates.
        weights: Weights of the sites for a method that divides its budget.
        given: The network is the user's own.
        dry: Nothing will be trained.

    Raises:
        BudgetError: The network has fewer ReLUs than the budget.
    """
    gates = plan.gates if plan else 0
    if recipe.budget and recipe.budget.gates != 0 and not plan:
        gates = parse_budget(recipe.budget.gates, find_sites(base, input_size).neurons)
    context = MethodContext(
        input_size=input_size,
        gates=gates,
        seed=lambda purpose: seed_of(recipe.seed, purpose),
        plan=plan,
        weights=weights,
        given=given,
        dry=dry,
    )
    return recipe.method_class.from_recipe(recipe, context)


def make_plan(
    recipe: Recipe,
    base: nn.Module,
    input_size: Sequence[int],
    weights: Mapping[str, float] | None = None,
    leaders: Sequence[str] = (),
) -> Plan:
    """Make the plan of a recipe whose method shares gates.

    Args:
        recipe: Recipe with its budget and options.
        base: The plain network.
        input_size: Size of one input without the batch.
        weights: Weights of the sites; by default every group gets the same share of channels.
        leaders: Sites that lead their groups.

    Raises:
        BudgetError: The budget cannot be met.
    """
    limits = budget_of(recipe)
    return divide(base, input_size, limits.gates, weights, leaders=leaders, **plan_options(recipe))


def plan_options(recipe: Recipe) -> dict[str, Any]:
    """Return the planning options of a recipe."""
    limits = recipe.budget.of_plan if recipe.budget else {}
    exact = recipe.model.maxpool == "exact"
    return {**limits, **recipe.method_class.plan_options(recipe), **({"exact_pools": True} if exact else {})}


def divide(
    model: nn.Module,
    input_size: Sequence[int],
    gates: int | str,
    weights: Mapping[str, float] | None,
    *,
    first_site_only: bool = False,
    layer_sharing: bool = True,
    max_group: int | None = None,
    per_block: bool = False,
    groups: Grouping = "consecutive",
    **options: Any,
) -> Plan:
    """Make a plan, as `plan` does, with the option that only the first site of a group counts."""
    if weights and first_site_only:
        most = max_group if layer_sharing else 1
        sites = find_sites(model, input_size)
        weights = of_first_sites(weights, sites, max_group=most, per_block=per_block, groups=groups)
    return plan(
        model,
        input_size,
        gates,
        weights,
        layer_sharing=layer_sharing,
        max_group=max_group,
        per_block=per_block,
        groups=groups,
        **options,
    )


def of_first_sites(counts: Mapping[str, float], sites: Sequence[Site], **limits: Any) -> dict[str, float]:
    """Set all weights to 0 except for that of the first site of each group; limits are those of `group_sites`."""
    first = {run[0].name for run in group_sites(sites, **limits)}
    return {name: count if name in first else 0.0 for name, count in counts.items()}


def load(folder: str | Path, *, model: nn.Module | None = None, best: bool = False) -> nn.Module:
    """Rebuild the network of a finished run from its folder alone.

    Args:
        folder: Run folder, or the name of a network that `deepshare networks` lists.
        model: The network given to `fit`, if it was your own, plain or shared; it is not modified.
        best: Use the weights with the best validation score instead of the last.

    Returns:
        The network, on the CPU and ready for inference.

    Raises:
        CheckpointError: The run is unfinished or damaged, has another plan, or the folder is not a run folder.
    """
    run = RunFolder(run_folder(folder))
    check_finished(run)
    path = run.best if best else run.model
    if not path.is_file():
        raise CheckpointError(f"{path} is not there: take the last weights instead of the best, or put it back")
    tensors, header = read_weights(path)
    if header.network == "shared" and not run.plan.is_file():
        raise CheckpointError(f"{run.path} has lost its {run.plan.name}: restore it from a copy of the run")
    made = Plan.load(run.plan) if header.network == "shared" else None
    if header.plan != plan_checksum(made):
        raise CheckpointError(f"{path} was trained with another plan than {run.plan}: restore the plan of the run")
    if model is None and header.own:
        raise CheckpointError(
            f"{run.path} was trained from a model of your own: give it in Python, deepshare.load(RUN, model=...)"
        )
    recipe = load_recipe(run.recipe)
    base = _build(recipe, header, made, path) if model is None else unshared(model)
    try:
        if header.network in ("shared", "gated"):
            network = make_method(recipe, base, header.input_size, plan=made).finished(base)
        else:
            network = convert(base, header.network, header.input_size)
    except (PlanMismatchError, UnsupportedModelError) as error:
        if model is None:
            raise
        first = str(error).partition(";")[0]
        why = first.partition("(")[2] if isinstance(error, PlanMismatchError) else first.partition(" (")[0]
        raise CheckpointError(
            f"{run.path} was trained with another network than the given {type(model).__name__} ({why}): "
            "give the one that fit had"
        ) from error
    fill(network, tensors, path)
    return network.eval()


def convert(model: nn.Module, kind: Kind, input_size: Sequence[int]) -> nn.Module:
    """Put GELUs into the network of a teacher; return any other as it is."""
    return gelu_network(model, input_size) if kind == "gelu" else model


def _build(recipe: Recipe, header: WeightsHeader, plan: Plan | None, path: Path) -> nn.Module:
    roles: dict[Kind, str] = {"gelu": "teacher", "plain": "plain"}
    wanted = recipe.model_of(roles.get(header.network, "result"))
    network = build(wanted)
    if header.reach == REACH or not (wanted.piecewise_to_relu or wanted.smooth_to_relu or wanted.maxpool):
        return network
    early = build(wanted, header.reach)
    computes_the_same = header.network == "plain" and not wanted.smooth_to_relu and wanted.maxpool != "avg"
    if computes_the_same or _layers(early) == _layers(network):
        return network
    sites = {site.name for group in plan.groups for site in group.sites} if plan else set()
    fitting = [made for made in (early, network) if plan and _sites(made, header.input_size) == sites]
    if len(fitting) != 1:
        raise CheckpointError(
            f"{path} does not tell whether its activations or pools were replaced as now, or by an early version: "
            "train again"
        )
    return fitting[0]


def _layers(model: nn.Module) -> list[tuple[str, type[nn.Module]]]:
    return [(name, type(module)) for name, module in model.named_modules()]


def _sites(model: nn.Module, input_size: Sequence[int]) -> set[str] | None:
    try:
        return {site.name for site in find_sites(model, input_size)}
    except UnsupportedModelError:  # something is left of what was to be rewritten
        return None


def check_finished(run: RunFolder) -> None:
    """Check that a folder holds a trained network.

    Raises:
        CheckpointError: It is not a run folder, its run is not finished, or its weights were not kept.
    """
    if not run.path.is_dir():
        near = nearest(str(run.path), networks.names()) or ":"
        raise CheckpointError(
            f"there is no folder {run.path}{near} give the folder of a finished run, or a name that deepshare networks "
            "lists"
        )
    if not run.recipe.is_file():
        raise CheckpointError(f"{run.path} is no run folder (it has no recipe.toml): give the folder of a finished run")
    if not run.model.is_file() and run.result.is_file():
        raise CheckpointError(
            f"{run.path} is finished, but its weights are not there: put {run.model.name} back into it"
        )
    if not run.model.is_file():
        raise CheckpointError(f"the run in {run.path} is not finished: finish it with deepshare train --resume")
