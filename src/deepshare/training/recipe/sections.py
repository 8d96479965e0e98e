"""The sections of a recipe that all methods share: one frozen model for each."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from deepshare.methods.base import Gates, Rate, Weight
from deepshare.methods.base import Positive as Positive
from deepshare.methods.base import Section as Section

Share = Annotated[float, Field(gt=0, lt=1)]
Size = Positive | Annotated[tuple[Positive, Positive], Field(strict=False)]  # of a square, or height and width

PILOTED = ("pruning", "sensitivity")  # allocations that [pilot] measures
DENSITIES = {"senet": ("SENet", "senet"), "snl-densities": ("SNL", "snl")}  # shipped: whose, and where in the file
RENAMED = {"classes": "num_classes"}  # keys of [model] as older recipes and run folders have them


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
    arguments: dict[str, int | float | bool | str] = Field({})
    weights: str | None = None  # a weights file or a run folder that the network starts from
    relu6_to_relu: bool = False  # every ReLU6 becomes a ReLU, so that its gate can be shared too

    @model_validator(mode="before")
    @classmethod
    def _old_names(cls, values: Any) -> Any:
        return with_new_names(values) if isinstance(values, dict) else values


def with_new_names(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a [model] by the names that its keys have now; both names at once are left to be refused."""
    return {new if (new := RENAMED.get(key, key)) not in values else key: value for key, value in values.items()}


class Augmentation(Section):
    """The random changes of a training image; ``crop`` and ``scale`` also change its mask."""

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
    """The data set, its size of image, and the share of its training images that is cut off for validation."""

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


def _allocate(value: str) -> str:
    if value not in (*DENSITIES, "snl", *PILOTED, "uniform") and not value.endswith(".json"):
        known = ", ".join(f'"{name}"' for name in (*DENSITIES, "snl", *PILOTED, "uniform"))
        raise ValueError(f"expected {known} or a .json file of {{site: count}}")
    return value


class Budget(Section):
    """The number of gates, and their spread over the network."""

    gates: Gates
    allocate: Annotated[str, AfterValidator(_allocate)] = "senet"
    layer_sharing: bool = True
    max_group: Positive | None = None
    patch: Positive = 1  # side of the square patches whose neurons share a gate, too
    per_block: bool = False  # layers share gates within a residual block only
    first_site_only: bool = False  # a group weighs what its first site weighs, not the sum of its sites
    leader: Literal["first", "data"] = "first"  # the site that computes the gates of a group; data: allocation.leaders

    @property
    def of_plan(self) -> dict[str, Any]:
        """The keys that decide which sites share gates."""
        return self.model_dump(include={"layer_sharing", "max_group", "per_block", "patch", "first_site_only"})


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
