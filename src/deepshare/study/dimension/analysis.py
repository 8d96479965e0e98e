"""Measurement of the effective dimension and the correlations of a network's gates.

At each position of a feature map, the gates of its C channels form one vector per image. Their effective dimension is
(sum of the PCA eigenvalues)^2 / (sum of their squares); the smaller it is relative to C, the more channels can share
gates. The baseline shuffles the positions within each channel of each image, which removes all correlation that depends
on position.

Two other kinds of sharing are measured on the same scale: the largest correlation of a gate with the gates of its
group's leader at the same position, and the correlation with the gate of the same channel at the next position. Gates
that are constant over all images have no correlation and add nothing to the dimension.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepshare.data.batching import Batches, batches
from deepshare.errors import DataError, DeepShareError
from deepshare.sharing.observe import like
from deepshare.sharing.sites import Site
from deepshare.study.dimension.gate_hooks import Groups, OnGates, watch
from deepshare.study.dimension.summary import Dimension, summarise
from deepshare.study.dimension.tally import Tally
from deepshare.training.build import load
from deepshare.training.data_source import make_data_source
from deepshare.training.recipe.files import load_recipe
from deepshare.training.run.folder import RunFolder

MEMORY = 2**30
PIXELS = 2**17  # per batch

ImageBatches = Tensor | Iterable[Tensor | Sequence[Any]]
Progress = Callable[[int, int], None]


def measure_run(
    folder: str | Path,
    *,
    samples: int = 4096,
    data_dir: Path | None = None,
    model: nn.Module | None = None,
    progress: Progress | None = None,
) -> Dimension:
    """Measure the network of a finished run on training images of its data set, without augmentation.

    Args:
        folder: The run folder.
        samples: Maximum number of images.
        data_dir: Folder of the data sets.
        model: The model that was passed to `fit`, if it was the user's own.
        progress: Called after every batch with the number of images done and the total.

    Raises:
        CheckpointError: The run is unfinished, damaged or not a run.
        DataError: Its data set is missing or damaged.
    """
    network, images, count = open_run(folder, samples=samples, data_dir=data_dir, model=model)
    return measure(network, images, samples=count, progress=progress)


def open_run(
    folder: str | Path, *, samples: int, data_dir: Path | None = None, model: nn.Module | None = None
) -> tuple[nn.Module, Batches, int]:
    """Load the network of a finished run, training images of its data set, and the number of images available.

    Raises:
        CheckpointError: The run is unfinished, damaged or not a run.
        DataError: Its data set is missing or damaged.
    """
    _check_samples(samples)
    network = load(folder, model=model)
    feed = make_data_source(None, load_recipe(RunFolder(Path(folder)).recipe), data_dir)
    pixels = torch.Size(feed.input_size[1:]).numel()
    size = max(1, min(128, PIXELS // pixels))
    images = batches(feed.train_set, size, shuffle=True, augment=feed.prepare, device=like(network).device)
    return network, images, min(samples, len(feed.train_set))


def _check_samples(samples: int) -> None:
    if samples < 2:
        raise DeepShareError(f"samples {samples}: give at least 2, and far more than a site has channels")


def measure(
    model: nn.Module,
    images: ImageBatches,
    *,
    samples: int = 4096,
    seed: int = 0,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> Dimension:
    """Measure the gates of any network.

    Args:
        model: A network with ReLUs or shared gates; it is left unchanged.
        images: Batches of network inputs with or without labels, such as a DataLoader; or a single tensor.
        samples: Maximum number of images. Use many more than channels: a dimension is at most the number of images.
        seed: Seed of the shuffle and of the sample of positions on maps that are too large for the memory.
        memory: Approximate number of bytes for the matrices of all sites.
        progress: Called after every batch with the number of images done and wanted.

    Raises:
        DataError: There are no images.
        UnsupportedModelError: The network has no gates, or its sites cannot be told apart.
    """
    _check_samples(samples)
    feed = _take(images, samples)
    first = next(feed, torch.empty(0))
    if first.dim() < 2:
        raise DataError("there are no images to measure gates on: give batches of them")
    watched = watch(model, first.shape[1:])
    to = like(model)
    tallies = _tallies(watched.groups, memory, seed, to.device)
    done = 0
    with torch.no_grad(), watched.run(_counter(watched.groups, tallies)) as run:
        for batch in chain([first], feed):
            run(batch.to(to))
            done += len(batch)
            if progress is not None:
                progress(done, samples)
    return Dimension(done, tuple(summarise(watched.groups, tallies)))


def _take(images: ImageBatches, samples: int) -> Iterator[Tensor]:
    """The first `samples` images, in batches."""
    left = samples
    for item in images.split(128) if isinstance(images, Tensor) else images:
        batch = (item if isinstance(item, Tensor) else item[0])[:left]
        yield batch
        left -= len(batch)
        if not left:
            return


def _tallies(groups: Groups, memory: int, seed: int, device: torch.device) -> dict[str, Tally]:
    """Create a tally per site; the sites of a group are measured at the same positions."""
    tallies: dict[str, Tally] = {}
    for group, count in zip(groups, _positions(groups, memory), strict=True):
        site = group[0]
        drawn = torch.randperm(site.positions, generator=torch.Generator().manual_seed(seed))
        places = drawn[:count].sort().values
        for member in group:
            number = seed + len(tallies)
            tallies[member.name] = Tally(member, places, led=member != site, seed=number, device=device)
    return tallies


def _positions(groups: Groups, memory: int) -> list[int]:
    """Number of positions to measure per group: all, or as many as fit its part of the memory.

    A position takes three matrices of C x C floats per site. Splitting the memory in proportion to C, and so the
    positions to 1 / C, minimises the total variance of the estimates; small maps leave what they do not need.
    """
    fits = {}
    waiting = sorted(groups, key=lambda group: group[0].positions * group[0].channels)
    while waiting:
        parts = sum(len(group) * group[0].channels for group in waiting)
        site, sites = waiting[0][0], len(waiting.pop(0))
        fits[site.name] = min(site.positions, max(1, memory // (3 * 4 * parts * site.channels)))
        memory -= fits[site.name] * 3 * 4 * sites * site.channels**2
    return [fits[group[0].name] for group in groups]


def _counter(groups: Groups, tallies: Mapping[str, Tally]) -> OnGates:
    """Callback that adds the gates of a site to its tally, with those of its leader, which runs before it."""
    leader_of = {site.name: group[0].name for group in groups for site in group}
    leaders: dict[str, Tensor] = {}

    def on_gates(site: Site, gates: Tensor) -> None:
        leader = leader_of[site.name]
        chosen = tallies[site.name].add(gates, leaders.get(leader))
        if leader == site.name:
            leaders[leader] = chosen

    return on_gates
