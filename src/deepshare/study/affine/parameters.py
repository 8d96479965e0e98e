"""Affine parameters of a trained network with shared gates, and the use that each channel makes of its gate.

A channel multiplies its input by beta where its gate is closed and by alpha + beta where it is open; alpha = 1 and
beta = 0 give ReLU. A channel is linear-like if the gate hardly matters, that is if the two factors differ by at most a
tenth of the larger: |alpha| <= LINEAR max(|beta|, |alpha + beta|). This includes channels with both factors zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepshare.errors import CheckpointError, UnsupportedModelError
from deepshare.sharing.gates import SharedReLU, by_site
from deepshare.sharing.plan import Plan
from deepshare.text import table
from deepshare.training.build import load
from deepshare.training.run.folder import RunFolder

LINEAR = 0.1


@dataclass(frozen=True, eq=False)
class SiteAffine:
    """Affine parameters of one site.

    Attributes:
        site: Name of the site.
        group: Number of its group, from 1.
        prototypes: Number of prototypes, which are the first channels; 0 at a follower.
        alpha: Weight of the gate, per channel.
        beta: Offset added to the weighted gate, per channel.
    """

    site: str
    group: int
    prototypes: int
    alpha: Tensor
    beta: Tensor

    @property
    def linear(self) -> Tensor:
        """Mask of the linear-like channels."""
        return linear_like(self.alpha, self.beta)

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dict for JSON."""
        linear = self.linear
        return {
            "site": self.site,
            "group": self.group,
            "channels": len(self.alpha),
            "prototypes": self.prototypes,
            "linear_prototypes": int(linear[: self.prototypes].sum()),
            "linear_replicates": int(linear[self.prototypes :].sum()),
            "alpha": [round(value, 6) for value in self.alpha.tolist()],
            "beta": [round(value, 6) for value in self.beta.tolist()],
        }


@dataclass(frozen=True)
class NetworkAffine:
    """Affine parameters of a network.

    Attributes:
        name: Name in tables and figures.
        gates: Gates per image, if known.
        sites: Parameters of each site.
    """

    name: str
    gates: int | None
    sites: tuple[SiteAffine, ...]

    @property
    def title(self) -> str:
        """Name and gate count."""
        return self.name if self.gates is None else f"{self.name}: {self.gates:,} gates"

    @property
    def linear_said(self) -> str:
        """Shares of linear-like channels, as text."""
        shares = ((self.share(prototypes=True), "prototypes"), (self.share(prototypes=False), "replicates"))
        said = [f"{share:.1%} of the {name}" for share, name in shares if share == share]
        return f"linear-like: {', '.join(said)}"

    def share(self, *, prototypes: bool) -> float:
        """Share of linear-like channels among all prototypes or all replicates; nan if there are none."""
        chosen = [(s.linear[: s.prototypes] if prototypes else s.linear[s.prototypes :]) for s in self.sites]
        return float(torch.cat(chosen).double().mean())

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dict for JSON; a share of no channels is null."""
        shares = {name: self.share(prototypes=name == "prototypes") for name in ("prototypes", "replicates")}
        known = {name: None if share != share else round(share, 6) for name, share in shares.items()}
        sites = [site.to_dict() for site in self.sites]
        return {"run": self.name, "gates": self.gates, "linear_share": known, "sites": sites}

    def __str__(self) -> str:
        header = ("group", "site", "channels", "prototypes", "linear-like prototypes", "linear-like replicates")
        rows = [
            (
                str(s.group),
                s.site,
                str(len(s.alpha)),
                str(s.prototypes or "-"),
                _count(s.linear[: s.prototypes]),
                _count(s.linear[s.prototypes :]),
            )
            for s in self.sites
        ]
        return f"{self.title}\n{table(header, rows, '><>>>>')}\n{self.linear_said}"


def _count(linear: Tensor) -> str:
    return f"{int(linear.sum())} ({float(linear.double().mean()):.1%})" if len(linear) else "-"


def linear_like(alpha: Tensor, beta: Tensor) -> Tensor:
    """Test per channel if its factors with the gate closed and open, beta and alpha + beta, are nearly equal.

    >>> linear_like(torch.tensor([1.0, 0.05, -0.05, 0.0]), torch.tensor([0.0, 1.0, 0.0, 0.0]))
    tensor([False,  True, False,  True])
    """
    return alpha.abs() <= LINEAR * torch.maximum(beta.abs(), (alpha + beta).abs())


def read_run(folder: str | Path, *, model: nn.Module | None = None) -> NetworkAffine:
    """Read the affine parameters of a finished run with shared gates.

    Args:
        folder: The run folder.
        model: The model that was passed to `fit`, if it was the user's own.

    Raises:
        CheckpointError: The run is unfinished, damaged or not a run, or its gates are not shared.
    """
    run = RunFolder(Path(folder))
    network = load(folder, model=model)
    if not run.plan.is_file():
        raise CheckpointError(f"{folder} has no shared gates, so no alpha and beta: give a run of the method deepshare")
    return read(network, name=str(folder), gates=Plan.load(run.plan).gates)


def read(model: nn.Module, *, name: str = "the network", gates: int | None = None) -> NetworkAffine:
    """Read the affine parameters of a network with shared gates.

    Args:
        model: From `share`, `fit` or `load`.
        name: Name in tables and figures.
        gates: Gates per image, for the titles.

    Raises:
        UnsupportedModelError: The network has no shared gates or no affine parameters.
    """
    sites = _sites(model)
    if not sites:
        raise UnsupportedModelError(f"{name} has no shared gates, so no alpha and beta: share its gates first")
    if not any(isinstance(module.alpha, nn.Parameter) for _, module in sites):
        raise UnsupportedModelError(f"{name} was shared without an affine map (affine = false): there is none to show")
    numbers = {id(cell): number for number, cell in enumerate(dict.fromkeys(module.cell for _, module in sites), 1)}
    return NetworkAffine(name, gates, tuple(_site(path, module, numbers[id(module.cell)]) for path, module in sites))


def _sites(model: nn.Module) -> Sequence[tuple[str, SharedReLU]]:
    """Sites in the order of the groups, leaders first."""
    found = [(path, module) for path, module in by_site(model) if isinstance(module, SharedReLU)]
    order = {id(cell): index for index, cell in enumerate(dict.fromkeys(m.cell for _, m in found))}
    return sorted(found, key=lambda item: (order[id(item[1].cell)], item[1].position))


def _site(path: str, module: SharedReLU, group: int) -> SiteAffine:
    prototypes = module.prototypes if module.position == 0 else 0
    alpha, beta = (value.detach().float().cpu() for value in (module.alpha, module.beta))
    return SiteAffine(path, group, prototypes, alpha, beta)
