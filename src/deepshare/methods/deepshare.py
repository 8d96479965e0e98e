"""DeepShare as a method: gates shared as planned; soft, then switched, then hard."""

import copy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import nn

from deepshare.errors import RecipeError
from deepshare.methods.affine_fit import SAMPLES, fit, is_untrained
from deepshare.methods.base import Images, Method, MethodContext, Rate, RecipeView, Settings, register
from deepshare.methods.square import curve, curved_relus, own_share, set_own
from deepshare.sharing.convert import share
from deepshare.sharing.gates import (
    fading,
    freeze_pi,
    hard_share,
    learn_pi,
    moved_share,
    set_progress,
    set_sharpness,
    shared_relus,
)
from deepshare.sharing.plan import Plan

Start = Literal["identity", "uniform", "fitted"]
ONLY = "it is for the method deepshare"


class DeepShareOptions(Settings):
    """The keys of [method] that are DeepShare's."""

    affine: bool = True
    start: Start | None = None  # of alpha and beta; None: see DeepShare.resolved
    decay_affine: bool = True  # weight decay reaches alpha and beta, too
    soft: bool = True  # False: hard gates in [gelu] and [switch], too, with their rates and teachers
    sharpness: Rate = 1.0
    switch_by: Literal["channels", "sharpness"] = "channels"  # what grows in [switch]: hard channels, or sharpness
    square: bool = False  # x^2 times a learned number beside the gates of every channel; see methods.square
    fade: Annotated[int, Field(ge=0)] = 0  # epochs of [gelu], or else of [finetune], in which a site's own ReLU fades
    mapping: Literal["round-robin", "contiguous", "learned"] = "round-robin"
    replicates: bool = True  # False trims the network to its prototype channels

    def problem(self, recipe: RecipeView) -> str | None:
        """Return a conflict among the options, or of them with the method and the phases."""
        kind = recipe.method_class
        if not self.replicates and kind.kind == "gated":
            return f'method "{kind.name}" has no use for method.replicates: take it away'
        replicates = kind.has_replicates(recipe)
        return self._phase_problem(recipe, replicates) or self._hard_problem(recipe) or self._decay_problem(recipe)

    def _phase_problem(self, recipe: RecipeView, replicates: bool) -> str | None:
        phases = recipe.result_phases
        if self.switch_by == "sharpness" and "switch" not in phases:
            return 'method.switch_by = "sharpness" needs [gelu] and [switch]: only soft gates become sharper'
        if self.start == "fitted" and not (self.affine and recipe.starts_from_plain):
            return 'method.start = "fitted" fits alpha and beta to a trained network: it needs method.initial = "plain"'
        if self.square and not replicates:
            return f"method.square stands beside shared gates: {ONLY}"
        if self.fade and not replicates:
            return f"method.fade leads from ReLUs to shared gates: {ONLY}"
        first = first_phase(recipe)
        epochs = phases[first].epochs if first in phases else 0
        if self.fade > epochs:
            return f"method.fade is {self.fade} and [{first}] has {epochs} epochs: make it {epochs} or less"
        if self.mapping == "learned" and "gelu" not in phases:
            return 'method.mapping = "learned" needs [gelu]: only soft gates can be chosen by their gradient'
        if self.mapping == "learned" and not replicates:
            return 'method.mapping = "learned" chooses for replicates, and without them there are none'
        return None

    def _hard_problem(self, recipe: RecipeView) -> str | None:
        if self.soft:
            return None
        if recipe.method_class.kind != "shared" or "gelu" not in recipe.result_phases:
            return "method.soft = false is for [gelu] and [switch], and without them gates are hard: take it away"
        if self.switch_by == "sharpness":
            return 'method.switch_by = "sharpness" makes soft gates sharper: take it or method.soft = false away'
        if self.sharpness != 1:
            return "method.sharpness is that of soft gates: take it or method.soft = false away"
        if self.mapping == "learned":
            return 'method.mapping = "learned" needs soft gates: take it or method.soft = false away'
        return None

    def _decay_problem(self, recipe: RecipeView) -> str | None:
        if self.decay_affine:
            return None
        if recipe.method_class.kind != "shared" or not self.affine:
            return "method.decay_affine = false is for alpha and beta, and here they are not learned: take it away"
        if not any(phase.weight_decay for phase in recipe.result_phases.values()):
            return "method.decay_affine = false is for phases with weight_decay, and here none has any: take it away"
        return None


@register("deepshare", order=0)
@dataclass
class DeepShare(Method):
    """Gates shared as planned.

    Attributes:
        plan: The groups of sites that share gates, and their prototypes.
        start: Start values of alpha and beta; fitted ones, which are not in the paper, come nearest to the ReLUs of a
            trained network.
        sharpness: Of the soft gate, the paper's gamma.
        seed: Of the uniform start values.
        replicates: Whether there are replicate channels; without them the network is trimmed to its prototypes.
        switch_by: Whether channel after channel gets the hard gate, or all soft gates become sharper until they are
            hard, which is not in the paper.
        square: Whether every site has a square beside its gates, which is not in the paper.
        fade: Epochs in which a site's own ReLU fades, which is not in the paper.
        fade_in: The phase that begins with them.
        soft: Whether gates are soft before the switch; otherwise they are hard in all phases.
        decay_affine: Whether weight decay reaches alpha and beta.
    """

    plan: Plan
    start: Start = "identity"
    sharpness: float = 1.0
    seed: int = 0
    replicates: bool = True
    switch_by: Literal["channels", "sharpness"] = "channels"
    square: bool = False
    fade: int = 0
    fade_in: str = "gelu"
    soft: bool = True
    decay_affine: bool = True

    kind: ClassVar = "shared"
    phases: ClassVar = ("gelu", "switch", "finetune")
    options: ClassVar = DeepShareOptions
    divides_budget: ClassVar = True

    @classmethod
    def problem(cls, recipe: RecipeView) -> str | None:
        """Without replicates no gate is shared, and nothing is learned in its place."""
        trimmed = not cls.has_replicates(recipe)
        if trimmed and (recipe.shares_layers or recipe.section(DeepShareOptions).affine):
            said = "method.replicates = false" if cls.replicates else f'method "{cls.name}"'
            return f"{said} needs budget.layer_sharing = false and method.affine = false"
        return None

    @classmethod
    def from_recipe(cls, recipe: RecipeView, context: MethodContext) -> Self:
        """Take the options of [method] and the plan."""
        if context.plan is None:
            raise TypeError(f"{cls.name} shares gates by a plan, and there is none")
        options = recipe.section(DeepShareOptions)
        # Nobody says whether a network that was given is trained; from a trained one only this start is right.
        start: Start = options.start or ("identity" if context.given or recipe.starts_trained else "uniform")
        return cls(
            plan=context.plan,
            start=start,
            sharpness=options.sharpness,
            seed=context.seed("alpha and beta"),
            replicates=cls.has_replicates(recipe),
            switch_by=options.switch_by,
            square=options.square,
            fade=options.fade,
            fade_in=first_phase(recipe),
            soft=options.soft,
            decay_affine=options.decay_affine,
        )

    @classmethod
    def resolved(cls, recipe: RecipeView) -> dict[str, object]:
        """Alpha and beta start so that trained weights keep their meaning, and at random in a new network."""
        return {"start": recipe.section(DeepShareOptions).start or ("identity" if recipe.starts_trained else "uniform")}

    @classmethod
    def has_replicates(cls, recipe: RecipeView) -> bool:
        """Return True if there are replicate channels."""
        return cls.replicates and recipe.section(DeepShareOptions).replicates

    @classmethod
    def plan_options(cls, recipe: RecipeView) -> dict[str, Any]:
        """The mapping, and whether alpha and beta are learned."""
        return recipe.section(DeepShareOptions).model_dump(include={"mapping", "affine"})

    def convert(self, model: nn.Module) -> nn.Module:
        """Share the gates of a plain network."""
        start: Literal["identity", "uniform"] = "uniform" if self.start == "uniform" else "identity"
        shared = share(model, self.plan, start=start, generator=torch.Generator().manual_seed(self.seed))
        set_sharpness(shared, self.sharpness)
        return self._shaped(shared)

    def adopt(self, model: nn.Module) -> nn.Module:
        """Give a network whose gates are shared its squares.

        Raises:
            RecipeError: It has squares, and the recipe none.
        """
        if not self.square and any(True for _ in curved_relus(model)):
            raise RecipeError("the network has squares beside its shared gates: set method.square = true")
        shared = copy.deepcopy(model)
        if self.square:
            curve(shared)
        return shared

    def finished(self, model: nn.Module) -> nn.Module:
        """Share the gates, with alpha and beta to come from a file."""
        return self._shaped(share(model, self.plan))

    def _shaped(self, shared: nn.Module) -> nn.Module:
        if not self.replicates:
            trim(shared)
        if self.square:
            curve(shared)
        return shared

    def build_phase_modules(self, model: nn.Module, phase: str) -> None:
        """In `gelu`, where pi is learned, channels have preferences."""
        if phase == "gelu":
            learn_pi(model)

    def on_phase_start(self, model: nn.Module, phase: str, images: Images) -> None:
        """Start to learn pi with `gelu` and stop before the switch; fit alpha and beta that are not trained yet."""
        if self.start == "fitted" and is_untrained(model):
            self.on_epoch_start(model, phase, 0, 1)
            fit(model, images(SAMPLES))
        if phase == "gelu":
            learn_pi(model)
        else:
            freeze_pi(model)

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Alpha and beta apart where they do not decay."""
        affine = {id(value) for site in shared_relus(model) for value in (site.alpha, site.beta)}
        if self.decay_affine or not affine:
            return super().parameter_groups(model)
        apart: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
        for value in model.parameters():
            apart[id(value) in affine].append(value)
        return [{"params": apart[0]}, {"params": apart[1], "weight_decay": 0.0}]

    def on_epoch_start(self, model: nn.Module, phase: str, epoch: int, epochs: int) -> None:
        """Soft gates in `pilot` and `gelu`, one more step in each epoch of `switch`, hard gates anywhere else."""
        steps = {"pilot": 0.0, "gelu": 0.0, "switch": (epoch + 1) / epochs} if self.soft else {}
        progress = steps.get(phase, 1.0)
        if self.switch_by == "channels":
            set_progress(model, progress)
        else:
            set_progress(model, float(progress == 1))
            set_sharpness(model, sharpened(self.sharpness, progress))
        if self.fade:
            set_own(model, own_share(epoch, self.fade) if phase == self.fade_in else 0.0)

    def measures(self, model: nn.Module) -> dict[str, float]:
        """The share of channels with a hard gate, and the sharpness and moves of the others if they change."""
        found = {"hard_share": hard_share(model)}
        if self.switch_by == "sharpness" and found["hard_share"] < 1:
            found["sharpness"] = next(shared_relus(model)).sharpness
        if self.fade:
            found["own_relu"] = next(fading(model))[1].own
        moved = moved_share(model)
        return found if moved is None else {**found, "moved": moved}


def first_phase(recipe: RecipeView) -> str:
    """The first phase after a pilot: with soft gates if there are any."""
    return "gelu" if "gelu" in recipe.result_phases else "finetune"


def sharpened(sharpness: float, progress: float) -> float:
    """The sharpness when the width of the soft gate, 1 over its sharpness, has shrunk by a share of what it was.

    At the end the width would be nothing, which is the hard gate; the sharpness then stays as it is.

    >>> [sharpened(1.5, progress) for progress in (0, 0.25, 0.5, 0.75, 1)]
    [1.5, 2.0, 3.0, 6.0, 1.5]
    """
    return sharpness / (1 - progress) if progress < 1 else sharpness


def trim(model: nn.Module) -> None:
    """Silence the replicate channels of a shared network without learned alpha, as if they had been cut off."""
    for site in shared_relus(model):
        site.alpha[site.prototypes :] = 0
