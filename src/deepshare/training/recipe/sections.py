"""The sections of a recipe: one frozen model for each."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
Size = Positive | Annotated[tuple[Positive, Positive], Field(strict=False)]  # of a square, or height and width
PILOTED = ("pruning", "sensitivity")  # allocations that [pilot] measures
RENAMED = {"classes": "num_classes"}  # keys of [model] as older recipes and run folders have them
DENSITIES = {"senet": ("SENet", "senet"), "snl-densities": ("SNL", "snl")}  # shipped: whose, and where in the file
_SHARE = re.compile(r"\d+(\.\d+)?%")


def _gates(value: int | str) -> int | str:
    if isinstance(value, str) and not (_SHARE.fullmatch(value) and 0 < float(value[:-1]) <= 100):
        raise ValueError('expected a number of gates (6000) or a share of the ReLUs ("1.25%")')
    if isinstance(value, int) and value <= 0:
        raise ValueError("expected a number of gates above 0")
    return value


def _allocate(value: str) -> str:
    if value not in (*DENSITIES, "snl", *PILOTED, "uniform") and not value.endswith(".json"):
        expected = (
            '"senet", "snl-densities", "snl", "pruning", "sensitivity", "uniform" or a .json file of {site: count}'
        )
        raise ValueError(f"expected {expected}")
    return value


def with_new_names(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a [model] by the names that its keys have now; both names at once are left to be refused."""
    return {new if (new := RENAMED.get(key, key)) not in values else key: value for key, value in values.items()}


Gates = Annotated[int | str, AfterValidator(_gates)]


class Section(BaseModel):
    """The rules of every section: nothing unknown, nothing changed later, no type guessed."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Paper(Section):
    """The row of the paper that a recipe is for, with what the paper reports."""

    table: Positive
    row: str
    gates_k: Rate
    accuracy: Rate | None = None
    miou: Rate | None = None

    @model_validator(mode="after")
    def _one_figure(self) -> Self:
        if (self.accuracy is None) == (self.miou is None):
            raise ValueError("give either accuracy or miou")
        return self


class Model(Section):
    """The network, by its name in the zoo."""

    name: str
    num_classes: Positive
    arguments: dict[str, int | float | bool | str] = {}
    weights: str | None = None  # a weights file or a run folder that the network starts from
    relu6_to_relu: bool = False  # every ReLU6 becomes a ReLU, so that its gate can be shared too

    @model_validator(mode="before")
    @classmethod
    def _old_names(cls, values: Any) -> Any:
        return with_new_names(values) if isinstance(values, dict) else values


class Augmentation(Section):
    """What is done to a training image, by chance; ``crop`` and ``scale`` also to its mask."""

    crop_padding: Annotated[int, Field(ge=0)] = 0
    flip: bool = False
    jitter: Weight = 0.0  # the most by which brightness, contrast and saturation change
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    crop: Size | None = None
    scale: tuple[Rate, Rate] | None = Field(None, strict=False)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.crop and self.crop_padding:
            raise ValueError("crop (out of a large image) and crop_padding (a shift of a small one) exclude each other")
        if self.scale and self.scale[0] > self.scale[1]:
            raise ValueError("scale runs from the smaller to the larger factor")
        return self


class Data(Section):
    """The data set, its size of image, and what is cut from its training images for validation."""

    name: str
    image_size: Size
    validation: int | float
    subset: Positive | None = None  # only so many of the training images
    seed: Annotated[int, Field(ge=0)] | None = None  # of validation images and subset; None: the recipe's
    evaluation: Literal["whole", "sliding"] | None = None  # of test images with masks; None: both in the input's frame
    augmentation: Augmentation = Augmentation()

    @model_validator(mode="after")
    def _validation(self) -> Self:
        if self.validation <= 0 or (isinstance(self.validation, float) and self.validation >= 1):
            raise ValueError("validation is a number of training images (1000) or a share of them (0.02)")
        return self


class Budget(Section):
    """How many gates, and how they are spread over the network."""

    gates: Gates
    allocate: Annotated[str, AfterValidator(_allocate)] = "senet"
    layer_sharing: bool = True
    max_group: Positive | None = None
    patch: Positive = 1  # side of the square patches whose neurons share a gate, too
    per_block: bool = False  # layers share gates within a residual block only
    first_site_only: bool = False  # a group weighs what its first site weighs, not the sum of its sites
    leader: Literal["first", "data"] = "first"  # which site computes the gates of a group; data: see training.leaders

    @property
    def of_plan(self) -> dict[str, Any]:
        """What decides, beside the gates and their allocation, which sites share them."""
        return self.model_dump(include={"layer_sharing", "max_group", "per_block", "patch", "first_site_only"})


Start = Literal["identity", "uniform", "fitted"]


class Method(Section):
    """What becomes of the ReLUs."""

    name: Literal[
        "deepshare", "relu", "trimmed", "snl", "autorep", "senet", "deepreduce", "spatial", "hybrenet", "delphi"
    ] = "deepshare"
    affine: bool = True
    start: Start | None = None  # of alpha and beta; None: see Recipe.start
    decay_affine: bool = True  # weight decay reaches alpha and beta, too
    soft: bool = True  # False: hard gates in [gelu] and [switch], too, with their rates and teachers
    sharpness: Rate = 1.0
    switch_by: Literal["channels", "sharpness"] = "channels"  # what grows in [switch]: hard channels, or sharpness
    square: bool = False  # x^2 times a learned number beside the gates of every channel; see methods.curved
    fade: Annotated[int, Field(ge=0)] = 0  # epochs of [gelu], or else of [finetune], in which a site's own ReLU fades
    mapping: Literal["round-robin", "contiguous", "learned"] = "round-robin"
    replicates: bool = True  # False trims the network to its prototype channels
    initial: Literal["model", "plain"] = "model"  # the network starts as built, or as the trained plain one


class Phase(Section):
    """One stretch of training."""

    epochs: Positive
    batch: Positive
    lr: Rate
    schedule: Literal["linear", "cosine", "poly", "steps", "none"]
    end_lr: Weight | None = None
    milestones: tuple[Share, ...] = Field((), strict=False)  # of the steps schedule, as shares of the phase
    factor: Rate | None = None
    optimiser: Literal["sgd", "adam"] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # Adam's first beta
    weight_decay: Weight
    clip: Rate | None = None  # no entry of a gradient is larger
    distill: Weight | None = None  # None: [distillation] weight, but nothing in plain and teacher

    @model_validator(mode="after")
    def _schedule(self) -> Self:
        falls = self.schedule in ("linear", "cosine", "poly")
        steps = self.schedule == "steps"
        if falls != (self.end_lr is not None):
            raise ValueError(f'schedule "{self.schedule}" ' + ("needs end_lr" if falls else "takes no end_lr"))
        if steps != bool(self.milestones) or steps != (self.factor is not None):
            verb = "needs" if steps else "takes no"
            raise ValueError(f'schedule "{self.schedule}" {verb} milestones and factor')
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError("milestones are shares of the phase in rising order")
        return self


class NetworkPhase(Phase):
    """The training of the plain network or of the teacher, which a finished one may stand in for."""

    weights: str | None = None  # a finished network of the same kind: taken, not trained
    model: Model | None = None  # another network than [model]


class Distillation(Section):
    """The loss beside a teacher: ce_weight x cross-entropy + weight x T^2 x KL at the temperature T."""

    temperature: Rate = 4.0
    weight: Weight = 1.0
    ce_weight: Weight = 1.0
    teacher: Literal["gelu", "plain"] = "gelu"  # the network with GELU, [teacher], or with ReLU, [plain]
    after_gelu: Literal["itself", "teacher"] = "itself"  # [switch] and [finetune] learn from what [gelu] ended with


class SNL(Section):
    """Selective network linearisation, as a method or run to learn how many gates each site wants.

    The method takes its rates and epochs from [search]; gates, lr, batch and max_epochs are for the other use.
    """

    gates: Gates | None = None  # the count at which it stops; None: the budget
    lasso: Rate = 1e-5  # weight of the sum of the masks in the loss
    growth: Annotated[float, Field(gt=1)] = 1.1
    grow_from: Annotated[int, Field(ge=0)] = 5  # the epoch, from 0, after which the lasso may first grow
    threshold: Rate = 1e-2
    lr: Rate = 1e-3
    batch: Positive = 128
    max_epochs: Positive = 2000

    @property
    def of_method(self) -> dict[str, Any]:
        """What the method itself takes."""
        return self.model_dump(include={"lasso", "growth", "grow_from", "threshold"})


class AutoReP(Section):
    """Automatic ReLU replacement: learned indicators with hysteresis, polynomials in the place of ReLUs."""

    penalty_weight: Rate = 140.0  # of the share of ReLUs above the budget
    threshold: Rate = 0.003  # how far past zero an indicator must go to change its gate
    scale: Rate = 0.1  # of the squared term
    fit_steps: Positive = 508  # steps in which polynomials are fitted to the data; then they are trained only
    fit_every: Positive = 10
    start: Literal["fit", "authors"] = "fit"  # of the polynomials: the best fit, or as in the authors' code


class SENet(Section):
    """Gates where the network without them differs most from the one with all; attention in finetune."""

    attention: Weight = 1000.0  # weight of the distance between attention maps


class Spatial(Section):
    """Gates for patches of each channel, chosen by the distortion that they cause."""

    samples: Positive = 2048  # training images that the distortion is measured on
