"""AutoReP: every neuron learns an indicator with hysteresis; it keeps its ReLU or becomes a polynomial.

A neuron computes m ReLU(x) + (1 - m) (s c2 x^2 + c1 x + c0), with one polynomial per channel. c2, c1 and c0 start as
the best quadratic for ReLU under the channel's distribution and are then trained with the weights. As in the authors'
code, c2 does not compensate for s = 0.1, so that training starts with less than the best square. That code also uses
the variance as the standard deviation, a tenth of c2 and a fifth of c0: `authors_start`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from deepshare.methods.base import (
    Images,
    Method,
    MethodContext,
    Positive,
    Rate,
    RecipeView,
    Settings,
    over_processes,
    register,
    swap,
)
from deepshare.methods.gated_polynomial import GatedPolynomial, gated, give_gates
from deepshare.sharing.activation import laid_out
from deepshare.sharing.convert import replace_sites
from deepshare.sharing.sites import Site, find_sites

LEAST_VARIANCE = 0.5  # for a smaller one the square would explode once the channel varies
MEMORY = 0.1  # weight of a batch in the running mean and variance


def hysteresis(mask: Tensor, indicator: Tensor, threshold: float) -> Tensor:
    """Close a gate when its indicator falls to -threshold, open it when it rises above threshold."""
    return torch.where(mask, indicator > -threshold, indicator > threshold)


def fit_relu(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the quadratic nearest to ReLU in the mean square over x ~ N(mean, variance): factors of x^2, x and 1.

    >>> [round(value.item(), 4) for value in fit_relu(torch.tensor(0.0), torch.tensor(1.0))]
    [0.1995, 0.5, 0.1995]
    """
    return _nearest(mean, variance.clamp(min=LEAST_VARIANCE).sqrt())


def authors_start(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the quadratic that the authors' code starts from, which is not the nearest.

    >>> [round(value.item(), 4) for value in authors_start(torch.tensor(0.0), torch.tensor(4.0))]
    [0.005, 0.5, 0.1596]
    """
    square, linear, constant = _nearest(mean, variance.clamp(min=LEAST_VARIANCE))
    return square / 10, linear, constant / 5


STARTS = {"fit": fit_relu, "authors": authors_start}


def _nearest(mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scaled = mean / deviation
    density = torch.exp(-(scaled**2) / 2) / (2 * torch.pi) ** 0.5
    square = density / (2 * deviation)
    linear = torch.special.ndtr(scaled) - scaled * density
    return square, linear, (scaled * mean + deviation) * density / 2


class _Indicate(torch.autograd.Function):
    """The mask; in the backward pass the indicator gets its gradient times softplus(indicator)."""

    @staticmethod
    def forward(ctx: FunctionCtx, indicator: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(indicator)
        return mask.to(indicator.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (indicator,) = ctx.saved_tensors
        return F.softplus(indicator) * grad, None


class ReplacedReLU(nn.Module):
    """A ReLU with an indicator per neuron and a polynomial per channel.

    Args:
        site: Site that it replaces.
        threshold: Threshold of the hysteresis.
        scale: Factor s of the squared term.
        fit_steps: Training steps in which the polynomials are fitted to the data.
        fit_every: Steps between two fits.
        start: Key of `STARTS`, the function that fits them.
    """

    mask: Tensor
    mean: Tensor
    variance: Tensor
    steps: Tensor

    def __init__(
        self, site: Site, threshold: float, scale: float, fit_steps: int, fit_every: int, start: str = "fit"
    ) -> None:
        super().__init__()
        self.site, self.threshold, self.scale, self.start = site, threshold, scale, start
        self.fit_steps, self.fit_every = fit_steps, fit_every
        self.indicator = nn.Parameter(torch.ones(site.shape))
        self.square, self.linear, self.constant = (nn.Parameter(torch.zeros(site.channels, 1, 1)) for _ in range(3))
        self.register_buffer("mask", torch.ones(site.shape, dtype=torch.bool))
        self.register_buffer("mean", torch.zeros(site.channels))
        self.register_buffer("variance", torch.ones(site.channels))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        """Update mask and polynomials in training, and activate."""
        maps = x.reshape(x.shape[0], *self.mask.shape)
        if self.training:
            self._update(maps.detach())
        square, linear, constant = (laid_out(value, maps) for value in (self.square, self.linear, self.constant))
        polynomial = (self.scale * square * maps + linear) * maps + constant
        return torch.lerp(polynomial, F.relu(maps), laid_out(self.indicate(), maps)).reshape(x.shape)

    def indicate(self) -> Tensor:
        """Return the mask as numbers that pass gradients to the indicator."""
        return cast(Tensor, _Indicate.apply(self.indicator, self.mask))  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def _update(self, x: Tensor) -> None:
        self.mask.copy_(hysteresis(self.mask, self.indicator, self.threshold))
        step = int(self.steps)
        if step >= self.fit_steps:
            return
        variance, mean = torch.var_mean(x.float(), (0, 2, 3), correction=0)
        mean, square = over_processes(torch.stack([mean, variance + mean.square()]))
        variance = square - mean.square()
        self.mean.lerp_(mean, MEMORY if step else 1.0)
        self.variance.lerp_(variance, MEMORY if step else 1.0)
        self.steps += 1
        if step % self.fit_every == 0:
            fitted = STARTS[self.start](self.mean, self.variance)
            for value, new in zip((self.square, self.linear, self.constant), fitted, strict=True):
                value.copy_(new.view(-1, 1, 1))


class AutoRePSettings(Settings):
    """Automatic ReLU replacement: learned indicators with hysteresis, polynomials in the place of ReLUs."""

    penalty_weight: Rate = 140.0  # of the share of ReLUs above the budget
    threshold: Rate = 0.003  # how far past zero an indicator must go to change its gate
    scale: Rate = 0.1  # of the squared term
    fit_steps: Positive = 508  # steps in which polynomials are fitted to the data; then they are trained only
    fit_every: Positive = 10
    start: Literal["fit", "authors"] = "fit"  # of the polynomials: the best fit, or as in the authors' code


@register("autorep", order=4)
@dataclass
class AutoReP(Method):
    """Indicators, a penalty on gates above the budget, and a final cut that makes the budget exact.

    Attributes:
        input_size: Size of one input without the batch.
        gates: The budget.
        penalty_weight: Weight in the loss of the share of ReLUs above the budget.
        threshold: Threshold of the hysteresis.
        scale: Factor of the squared term.
        fit_steps: Training steps in which polynomials are fitted.
        fit_every: Steps between two fits.
        start: Polynomials fitted best, or as in the authors' code.
        seed: Seed of the indicators, which start uniform in [0, 1).
    """

    input_size: Sequence[int]
    gates: int
    penalty_weight: float = 140.0
    threshold: float = 0.003
    scale: float = 0.1
    fit_steps: int = 508
    fit_every: int = 10
    start: Literal["fit", "authors"] = "fit"
    seed: int = 0

    phases: ClassVar = ("search", "finetune")
    section: ClassVar = AutoRePSettings
    without_gates: ClassVar = True

    @classmethod
    def from_recipe(cls, recipe: RecipeView, context: MethodContext) -> Self:
        """Take the settings of [autorep]."""
        settings = recipe.section(AutoRePSettings).model_dump()
        return cls(context.input_size, context.gates, **settings, seed=context.seed("gates"))

    def convert(self, model: nn.Module) -> nn.Module:
        """Put an indicator and a polynomial at every site of a plain network; no gate is dropped yet."""
        generator = torch.Generator().manual_seed(self.seed)
        network = replace_sites(model, find_sites(model, self.input_size), self._make)
        for site in replaced(network):
            site.indicator.data.copy_(torch.rand(site.site.shape, generator=generator))
        return network

    def _make(self, site: Site) -> ReplacedReLU:
        return ReplacedReLU(site, self.threshold, self.scale, self.fit_steps, self.fit_every, self.start)

    def build_phase_modules(self, model: nn.Module, phase: str) -> None:
        """Build fixed gates for `finetune`, with trainable polynomials."""
        if phase == "finetune":
            swap(model, ReplacedReLU, _fixed)

    def on_phase_start(self, model: nn.Module, phase: str, images: Images) -> None:
        """Before `finetune`, give the gates of the budget to the largest indicators.

        The search may end above the budget, or below it by the optimiser's momentum.
        """
        if phase != "finetune":
            return
        scores = [site.indicator.detach() for site in replaced(model)]
        self.build_phase_modules(model, phase)
        give_gates(model, scores, self.gates)

    def penalty(self, model: nn.Module) -> Tensor | None:
        """Penalise the share of gates above that of the budget, during the search."""
        masks = [site.indicate() for site in replaced(model)]
        if not masks:
            return None
        total = sum(mask.numel() for mask in masks)
        density = torch.stack([mask.sum() for mask in masks]).sum() / total
        return self.penalty_weight * F.relu(density - self.gates / total)

    def measures(self, model: nn.Module) -> dict[str, float]:
        """Record the number of gates."""
        searched = sum(int(site.mask.sum()) for site in replaced(model))
        return {"gates": float(searched or sum(module.gates for _, module in gated(model)))}


def _fixed(site: ReplacedReLU) -> GatedPolynomial:
    values = (site.square, site.linear, site.constant)
    return GatedPolynomial(site.site.shape, [nn.Parameter(value.data.clone()) for value in values], site.scale)


def replaced(model: nn.Module) -> Iterator[ReplacedReLU]:
    """Iterate over the sites that are still searched, in the order of modules."""
    return (module for module in model.modules() if isinstance(module, ReplacedReLU))
