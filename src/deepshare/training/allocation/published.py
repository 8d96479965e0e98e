"""How a budget is divided over the sites of a network: shipped densities, a file of counts, or the same share for all.

What SNL, a pilot with few weights or one with shared gates finds comes from training, see `training.pipeline`;
it is written to a file and can be used again.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from torch import nn

from deepshare.errors import BudgetError
from deepshare.sharing.plan import Plan, group_sites, plan
from deepshare.sharing.sites import Site, find_sites
from deepshare.training.recipe.sections import DENSITIES, PILOTED


def weights(allocate: str, sites: Sequence[Site]) -> dict[str, float] | None:
    """Return the weights that an allocation other than SNL gives to the sites.

    Args:
        allocate: One of `DENSITIES`, `uniform` or a JSON file of {site: count}.
        sites: The sites of the network.

    Returns:
        Weights for `plan` by site; None is the same share of channels everywhere.

    Raises:
        BudgetError: There are no densities for the network, the file does not hold counts, or it takes a pilot.
    """
    if allocate == "uniform":
        return None
    if allocate in PILOTED:
        raise BudgetError(
            f'{allocate} is measured in training: run deepshare train with budget.allocate = "{allocate}" and a '
            "[pilot], and give its pilot/weights.json here"
        )
    return shipped_weights(allocate, sites) if allocate in DENSITIES else read_counts(Path(allocate))


def shipped_weights(allocate: str, sites: Sequence[Site]) -> dict[str, float]:
    """Return a method's density times the neurons for every site of a network, of any width and image size.

    Raises:
        BudgetError: Its densities are not known for the network.
    """
    title, key = DENSITIES[allocate]
    text = (resources.files("deepshare.training.allocation") / "densities.toml").read_text(encoding="utf-8")
    networks = tomllib.loads(text).get(key, {})
    names = [site.name for site in sites]
    for densities in networks.values():
        if names == list(densities):
            return {site.name: densities[site.name] * site.neurons for site in sites}
    known = f"the sites of {' and '.join(networks)} only" if networks else "no network yet"
    raise BudgetError(
        f"{title}'s densities are known for {known}: allocate by pruning, which measures them, by uniform, by snl or "
        "by a file of counts"
    )


def read_counts(path: Path) -> dict[str, float]:
    """Read a JSON file of {site: count}.

    Raises:
        BudgetError: The file cannot be read or holds something else.
    """
    try:
        counts = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BudgetError(
            f"cannot read {path}: {error.strerror}: allocate by uniform, senet, snl, or a JSON file of {{site: count}}"
        ) from None
    except ValueError as error:
        raise BudgetError(f"{path} is not JSON ({error}): give {{site: count}}") from None
    if not isinstance(counts, dict) or not all(type(count) in (int, float) for count in counts.values()):
        raise BudgetError(f'{path}: give one number for each site, such as {{"layer1.0.act1": 655, ...}}')
    return {name: float(count) for name, count in counts.items()}


def divide(
    model: nn.Module,
    input_size: Sequence[int],
    budget: int | str,
    shares: Mapping[str, float] | None,
    *,
    first_site_only: bool = False,
    layer_sharing: bool = True,
    max_group: int | None = None,
    per_block: bool = False,
    **options: Any,
) -> Plan:
    """Make a plan, as `plan` does, in which a group may weigh what its first site weighs."""
    if shares and first_site_only:
        most = max_group if layer_sharing else 1
        shares = of_first_sites(shares, find_sites(model, input_size), max_group=most, per_block=per_block)
    return plan(
        model,
        input_size,
        budget,
        shares,
        layer_sharing=layer_sharing,
        max_group=max_group,
        per_block=per_block,
        **options,
    )


def of_first_sites(
    counts: Mapping[str, float], sites: Sequence[Site], *, max_group: int | None = None, per_block: bool = False
) -> dict[str, float]:
    """Keep the weight of the first site of each group and set the others to 0, so that it alone decides."""
    first = {run[0].name for run in group_sites(sites, max_group=max_group, per_block=per_block)}
    return {name: count if name in first else 0.0 for name, count in counts.items()}
