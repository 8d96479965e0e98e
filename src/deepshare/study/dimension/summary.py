"""Summary of the gates of every site: dimension and correlations computed from counts, as text and as JSON."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from deepshare.sharing.sites import Site
from deepshare.study.dimension.gate_hooks import Groups
from deepshare.study.dimension.tally import Tally, covariances, effective_dimension, strongest
from deepshare.text import table

ENOUGH = 10  # images per channel, below which dimensions are visibly too low
MEASURES = ("dimension", "shuffled", "channel", "leader", "neighbour", "constant")
LEGEND = """
positions: of the map, at which channels were compared
dimension: effective dimension over channels, median over positions; shuffled: the same with positions shuffled
channel, leader, neighbour: correlation with the nearest other channel, with the nearest channel of the group's leader,
  with the same channel one position on
constant: share of gates that never change"""


@dataclass(frozen=True)
class Quantiles:
    """Mean and quantiles of a value over the positions of a map; nan if there are no values."""

    mean: float
    low: float
    lower: float
    median: float
    upper: float
    high: float

    @classmethod
    def of(cls, values: Tensor) -> "Quantiles":
        """Compute the mean and the 5, 25, 50, 75 and 95% quantiles of the values that are not nan."""
        known = values[~values.isnan()].double()
        shares = known.new_tensor([0.05, 0.25, 0.5, 0.75, 0.95])
        points = known.quantile(shares) if len(known) else shares * torch.nan
        return cls(float(known.mean()), *points.tolist())


@dataclass(frozen=True)
class SiteGates:
    """Gates of one site.

    Attributes:
        site: The site.
        group: Number of its group, from 1.
        positions: Number of positions of the map at which channels were compared.
        dimension: Effective dimension divided by C.
        shuffled: The same with positions shuffled; nan on a 1x1 map, which has nothing to shuffle.
        constant: Share of the gates that never change.
        channels: Mean over the gates of the largest absolute correlation with another channel at the same position;
            about sqrt(2 ln C / images) by chance alone.
        leader: The same with the channels of the group's leader; nan for the leader itself.
        neighbours: Mean absolute correlation with the same channel's gate to the right and below; nan on a 1x1 map.
    """

    site: Site
    group: int
    positions: int
    dimension: Quantiles
    shuffled: Quantiles
    constant: float
    channels: float
    leader: float
    neighbours: float

    @property
    def positions_said(self) -> str:
        """Number of measured positions, as text."""
        every = self.site.positions
        return f"{every:,}" if self.positions == every else f"{self.positions:,} of {every:,}"


@dataclass(frozen=True)
class Dimension:
    """Gates of all sites of a network, measured over a number of images."""

    images: int
    sites: tuple[SiteGates, ...]

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dict for JSON; undefined values are null."""
        return {"images": self.images, "sites": [_plain(_entry(gates)) for gates in self.sites]}

    @property
    def warning(self) -> str:
        """Warning that some site has too few images for its channels; empty if there are enough."""
        few = [gates.site.channels for gates in self.sites if self.images < ENOUGH * gates.site.channels]
        if not few:
            return ""
        sites = f"{len(few)} site{'s' * (len(few) > 1)}"
        return (
            f"fewer than {ENOUGH} images for each channel at {sites}: dimensions there are too low and correlations "
            f"too high, take {ENOUGH * max(few):,} images"
        )

    def __str__(self) -> str:
        header = ("group", "site", "channels", "map", "positions", *MEASURES)
        rows = [
            (
                str(g.group),
                g.site.name,
                str(g.site.channels),
                f"{g.site.height}x{g.site.width}",
                g.positions_said,
                *map(_number, (g.dimension.median, g.shuffled.median, g.channels, g.leader, g.neighbours)),
                f"{g.constant:.1%}",
            )
            for g in self.sites
        ]
        note = f"\nnote: {self.warning}" if self.warning else ""
        return f"{table(header, rows, '><>>>>>>>>>')}\n{self.images:,} images{LEGEND}{note}"


def _entry(gates: SiteGates) -> dict[str, Any]:
    site = gates.site
    return {"site": site.name, "shape": list(site.shape), **{k: v for k, v in asdict(gates).items() if k != "site"}}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return None if value != value else round(value, 6) if isinstance(value, float) else value


def _number(value: float) -> str:
    return "-" if value != value else f"{value:.2f}"


def summarise(groups: Groups, tallies: Mapping[str, Tally]) -> Iterator[SiteGates]:
    """Turn the tallies, by site name, into summaries."""
    for number, group in enumerate(groups, 1):
        leader = tallies[group[0].name]
        for site in group:
            yield _summary(site, number, tallies[site.name], leader)


def _summary(site: Site, group: int, tally: Tally, leader: Tally) -> SiteGates:
    n, channels = tally.images, site.channels
    dimensions, nearest = [], []
    for covariance in covariances(tally.pairs, n, *[_opened(tally.pairs)] * 2):
        dimensions.append(effective_dimension(covariance.matrix) / channels)
        covariance.matrix.diagonal(dim1=1, dim2=2).zero_()  # exclude the channel itself
        nearest.append(strongest(covariance))
    mixed = covariances(tally.shuffled, n, *[_opened(tally.shuffled)] * 2)
    shuffled = torch.cat([effective_dimension(covariance.matrix) / channels for covariance in mixed])
    return SiteGates(
        site,
        group,
        len(tally.places),
        Quantiles.of(torch.cat(dimensions)),
        Quantiles.of(shuffled if site.positions > 1 else shuffled[:0]),
        float(((tally.open == 0) | (tally.open == n)).double().mean()),
        _mean(nearest) if channels > 1 else torch.nan,
        torch.nan if tally.leads is None else _to_leader(tally.leads, tally, leader),
        _to_neighbours(tally),
    )


def _opened(pairs: Tensor) -> Tensor:
    return pairs.diagonal(dim1=1, dim2=2)


def _to_leader(leads: Tensor, tally: Tally, leader: Tally) -> float:
    found = covariances(leads, tally.images, _opened(leader.pairs), _opened(tally.pairs))
    return _mean([strongest(covariance) for covariance in found])


def _to_neighbours(tally: Tally) -> float:
    n, opened = tally.images, tally.open.double()
    pairs = [
        (tally.right, opened[..., 1:], opened[..., :-1]),
        (tally.below, opened[:, 1:], opened[:, :-1]),
    ]
    found = []
    for both, one, other in pairs:
        scale = (one * (n - one) * other * (n - other)).sqrt()
        found.append(torch.where(scale > 0, (n * both - one * other).abs() / scale, torch.nan).flatten())
    return _mean(found)


def _mean(parts: list[Tensor]) -> float:
    return float(torch.cat(parts).nanmean())
