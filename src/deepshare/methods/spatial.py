"""Spatial sharing: the neurons of a patch share one gate, and each channel has the patch that distorts least.

The distortion by a patch is measured channel by channel, with the rest of the network unchanged. A multiple-choice
knapsack then finds the patches with the least total distortion, exactly unless the budget is very large.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare.methods import knapsack
from deepshare.methods.base import Images, Method, MethodContext, Positive, RecipeView, Settings, register
from deepshare.methods.patches import LINEAR, Patch, PatchReLU, patch_cost, patch_gate, patched, patches_of
from deepshare.sharing.convert import replace_sites
from deepshare.sharing.gates import spread
from deepshare.sharing.sites import find_sites

PIXELS = 2**18  # of the images at a time, those of several channels together: 256 of CIFAR, one of 512x512


class SpatialSettings(Settings):
    """Gates for patches of each channel, chosen by the distortion that they cause."""

    samples: Positive = 2048  # training images that the distortion is measured on


@register("spatial", order=7)
@dataclass
class Spatial(Method):
    """Chooses patches by distortion.

    Attributes:
        input_size: Size of one input without the batch.
        gates: The budget.
        samples: Training images that the distortion is measured on.
        channels: Channels of each site that are measured; the others count as the last of these. None is all.
    """

    input_size: Sequence[int]
    gates: int
    samples: int = 2048
    channels: int | None = None

    section: ClassVar = SpatialSettings

    @classmethod
    def from_recipe(cls, recipe: RecipeView, context: MethodContext) -> Self:
        """Take the settings of [spatial]; a dry run measures one channel of each site."""
        samples = recipe.section(SpatialSettings).samples
        return cls(context.input_size, context.gates, samples, channels=1 if context.dry else None)

    def convert(self, model: nn.Module) -> nn.Module:
        """Put patches of one neuron at every site of a plain network."""
        return replace_sites(model, find_sites(model, self.input_size), PatchReLU)

    def on_phase_start(self, model: nn.Module, phase: str, images: Images) -> None:
        """Choose the patches of all channels."""
        costs, losses = [], []
        training = model.training
        distortions = list(distortion(model.eval(), images(self.samples), self.channels))
        for site, table in zip(patched(model), distortions, strict=True):
            costs += [[patch_cost(site.site, patch) for patch in patches_of(site.site)]] * site.site.channels
            losses += table.double().tolist()
        chosen = iter(knapsack.choose(costs, losses, self.gates))
        for site in patched(model):
            options = patches_of(site.site)
            site.set_patches(torch.tensor([options[next(chosen)] for _ in range(site.site.channels)]))
        model.train(training)

    def measures(self, model: nn.Module) -> dict[str, float]:
        """Record the number of gates."""
        return {"gates": float(sum(site.gates for site in patched(model)))}


@torch.no_grad()
def distortion(model: nn.Module, images: Tensor, channels: int | None = None) -> Iterator[Tensor]:
    """Measure the distortion of the network by each patch in the place of each channel's ReLU, one at a time.

    Args:
        model: A network with patches of one neuron everywhere, in inference mode.
        images: Images to measure on.
        channels: Channels of each site to measure; the others count as the last of these. None is all.

    Yields:
        Mean squared difference (C, patches) for each site: of the network's output if that is a map, and of the last
        site's output for a classifier.
    """
    probes = [_Probe(site) for site in patched(model)]
    handles = [probe.site.register_forward_hook(probe) for probe in probes]
    try:
        for probe in probes:
            site = probe.site.site
            count = min(channels or site.channels, site.channels)
            rows = [_site_distortion(model, images, probe, probes[-1], patch, count) for patch in patches_of(site)]
            table = torch.stack(rows, 1)
            yield torch.cat([table, table[-1:].expand(site.channels - count, -1)])
    finally:
        for handle in handles:
            handle.remove()


class _Probe:
    """Hook at a site: replaces the ReLU of one channel by a patch, and keeps the output."""

    def __init__(self, site: PatchReLU) -> None:
        self.site = site
        self.patch: Patch = LINEAR
        self.channel: Tensor | None = None  # true at the channel that is replaced
        self.output: Tensor | None = None

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        self.output = output
        if self.channel is not None:
            x = inputs[0].reshape(output.shape[0], *self.site.site.shape)
            other = x if self.patch == LINEAR else x * spread(patch_gate(x, self.patch), self.patch, *x.shape[2:])
            self.output = torch.where(self.channel.view(-1, 1, 1), other, F.relu(x)).reshape(output.shape)
        return self.output


def _site_distortion(model: nn.Module, images: Tensor, probe: _Probe, last: _Probe, patch: Patch, count: int) -> Tensor:
    """Return the distortion of the first `count` channels of a site by one patch."""
    total = images.new_zeros(count)
    if patch == (1, 1):
        return total
    channels = torch.eye(probe.site.site.channels, dtype=torch.bool, device=images.device)[:count]
    probe.patch = patch
    most = max(1, PIXELS // images.shape[2:].numel())
    for part in images.split(most):
        clean = _run(model, part, probe, last, None)
        # vmap runs what comes before the site only once for all channels.
        run = partial(_difference, clean, model, part, probe, last)
        total += torch.vmap(run, chunk_size=max(1, most // len(part)))(channels) * len(part) / len(images)
    return total


def _difference(
    clean: Tensor, model: nn.Module, images: Tensor, probe: _Probe, last: _Probe, channel: Tensor
) -> Tensor:
    return (_run(model, images, probe, last, channel) - clean).square().mean()


def _run(model: nn.Module, images: Tensor, probe: _Probe, last: _Probe, channel: Tensor | None) -> Tensor:
    probe.channel = channel
    logits: Tensor = model(images)
    probe.channel = None
    return logits if logits.dim() > 2 or last.output is None else last.output
