"""What a recipe may say: one frozen model per section of its TOML file, and what goes together.

The same classes serve Python, the command line's flags and the record in a run folder. Numbers are never made from
strings here; ``deepshare.training.recipe.files`` reads files and flags into these.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from deepshare.training.recipe.sections import (
    PILOTED,
    SNL,
    AutoReP,
    Budget,
    Data,
    Distillation,
    Method,
    Model,
    NetworkPhase,
    Paper,
    Phase,
    Section,
    SENet,
    Spatial,
    Start,
)

__all__ = ["PHASES", "RESULT_PHASES", "SHARING", "Budget", "Data", "Phase", "Recipe"]

PHASES = ("teacher", "plain", "pilot", "gelu", "switch", "search", "finetune")
SHARED_PHASES = ("gelu", "switch", "finetune")
RESULT_PHASES = PHASES[2:]
SHARING = ("deepshare", "trimmed")  # methods with a plan
DIVIDING = (*SHARING, "senet")  # methods that divide their budget as budget.allocate says
FROM_SCRATCH: Literal["identity", "uniform"] = "uniform"  # alpha and beta of a network that is not trained yet
SEARCHING = ("snl", "autorep", "senet", "delphi")  # methods that find or approach their gates in [search]


class Recipe(Section):
    """Everything that decides a trained network, apart from where it is run."""

    name: str
    about: str
    seed: Annotated[int, Field(ge=0)] = 0
    paper: Paper | None = None
    model: Model
    data: Data
    budget: Budget | None = None
    method: Method = Method()
    distillation: Distillation = Distillation()
    snl: SNL = SNL()
    autorep: AutoReP | None = None
    senet: SENet | None = None
    spatial: Spatial | None = None
    plain: NetworkPhase | None = None
    teacher: NetworkPhase | None = None
    pilot: Phase | None = None
    gelu: Phase | None = None
    switch: Phase | None = None
    search: Phase | None = None
    finetune: Phase | None = None

    @property
    def phases(self) -> dict[str, Phase]:
        """The phases that run, in their order; the plain network and the teacher only where something needs them."""
        needed = {"teacher": self.needs_teacher, "plain": self.needs_plain}
        present = {name: getattr(self, name) for name in PHASES if needed.get(name, True)}
        return {name: phase for name, phase in present.items() if phase is not None}

    @property
    def needs_plain(self) -> bool:
        """Whether the trained plain network is the result, the start, the teacher or what the plan is made from."""
        plans = self.budget is not None and (self.budget.allocate == "snl" or self.budget.leader == "data")
        teaches = self.distillation.teacher == "plain" and any(map(self._learns, self._learners))
        return self.method.name == "relu" or self.method.initial == "plain" or plans or teaches

    @property
    def needs_teacher(self) -> bool:
        """Whether a phase learns from the GELU network; after the GELU phase that phase's own network may teach."""
        learners = ["plain"] * self.needs_plain + self._learners * (self.distillation.teacher == "gelu")
        return any(map(self._learns, learners))

    @property
    def _learners(self) -> list[str]:
        """The phases whose teacher is another network than the one that is trained."""
        if not self.gelu:
            return ["pilot", "search", "finetune"]
        return ["pilot", "gelu", "switch", "finetune"][: None if self.distillation.after_gelu == "teacher" else 2]

    def _learns(self, phase: str) -> bool:
        return getattr(self, phase) is not None and self.distill_weight(phase) > 0

    def distill_weight(self, phase: str) -> float:
        """Return the weight of distillation in a phase; 0 is no teacher at all."""
        own: Phase = getattr(self, phase)
        if own.distill is not None:
            return own.distill
        return self.distillation.weight if phase in RESULT_PHASES else 0.0

    def model_of(self, role: str) -> Model:
        """Return the network of a role; the teacher and the plain network may be others than the result."""
        phase = {"teacher": self.teacher, "plain": self.plain}.get(role)
        return (phase.model if phase else None) or self.model

    @property
    def start(self) -> Start:
        """How alpha and beta start: as the recipe says, or else so that trained weights keep their meaning."""
        trained = self.model.weights is not None or self.method.initial == "plain"
        return self.method.start or ("identity" if trained else FROM_SCRATCH)

    @property
    def settings(self) -> dict[str, Any]:
        """The hyperparameters of a method that has a section of its own."""
        match self.method.name:
            case "snl":
                return self.snl.of_method
            case "autorep":
                return (self.autorep or AutoReP()).model_dump()
            case "senet":
                return (self.senet or SENet()).model_dump()
            case "spatial":
                return (self.spatial or Spatial()).model_dump()
        return {}

    @model_validator(mode="after")
    def _together(self) -> Self:
        problem = self._method_problem() or self._phase_problem() or self._teacher_problem() or self._beyond_problem()
        if problem:
            raise ValueError(problem)
        return self

    def _method_problem(self) -> str | None:
        name = self.method.name
        shared = [phase for phase in SHARED_PHASES if getattr(self, phase) is not None]
        sections = ", ".join(f"[{phase}]" for phase in SHARED_PHASES)
        if self.search and name not in SEARCHING:
            return f'method "{name}" has no [search]: that is for {", ".join(SEARCHING)}'
        if name == "relu":
            if self.budget or shared:
                return f'method "relu" is the plain network: no [budget], no {sections}'
            if self.plain and self.plain.weights:
                return 'method "relu" trains the plain network: give model.weights to start from, not plain.weights'
            return None if self.plain else 'method "relu" needs [plain]'
        if self.budget is None:
            return f'method "{name}" needs [budget]'
        if name not in SHARING:
            return self._comparator_problem()
        if not shared:
            return f"at least one of {sections} is needed"
        if self.trimmed and (self.budget.layer_sharing or self.method.affine):
            said = 'method "trimmed"' if name == "trimmed" else "method.replicates = false"
            return f"{said} needs budget.layer_sharing = false and method.affine = false"
        return None

    @property
    def trimmed(self) -> bool:
        """Whether a network is cut down to its prototypes."""
        return self.method.name == "trimmed" or not self.method.replicates

    def _comparator_problem(self) -> str | None:
        name = self.method.name
        if idle := next(self._idle(), None):
            return f'method "{name}" has no use for {idle}: take it away'
        if self.gelu or self.switch:
            return f'method "{name}" has no soft gates: no [gelu], no [switch]'
        if not self.finetune or (name in SEARCHING and not self.search):
            wanted = "[search] and [finetune]" if name in SEARCHING else "[finetune]"
            return f'method "{name}" needs {wanted}'
        alike = self.distillation.teacher == "plain" and not (self.plain and self.plain.model)
        if name == "senet" and not (alike and self._learns("search") and self._learns("finetune")):
            cure = 'set distillation.teacher = "plain", and no weight of distillation to 0'
            return f'method "senet" compares itself with the network that it starts from: {cure}'
        return None

    def _idle(self) -> Iterator[str]:
        """What is said for other methods than this comparator, and would do nothing."""
        said = self.budget.model_dump(exclude={"gates", "allocate"}, exclude_defaults=True) if self.budget else {}
        yield from (f"budget.{key}" for key in said)
        if self.budget and self.budget.allocate.endswith(".json") and self.method.name not in DIVIDING:
            yield "budget.allocate"
        if not self.method.replicates:
            yield "method.replicates"
        others = {"autorep", "senet", "spatial"} - {self.method.name}
        yield from (f"[{name}]" for name in sorted(others) if getattr(self, name))

    def _phase_problem(self) -> str | None:
        if self.switch and not self.gelu:
            return "[switch] needs [gelu]: without soft gates there is nothing to switch"
        if self.gelu and not self.switch:
            return "[gelu] needs [switch]: the gates would stay soft"
        trained = self.plain or self.model.weights
        if self.method.initial == "plain" and not trained:
            return 'method.initial = "plain" needs [plain] or model.weights'
        if self.method.initial == "plain" and self.plain and self.plain.model:
            return 'method.initial = "plain" starts from the same network: take plain.model away'
        if self.distillation.teacher == "plain" and self.needs_plain and not trained:
            return 'distillation.teacher = "plain" needs [plain] or model.weights'
        if self.budget and self.budget.allocate == "snl" and not trained:
            return 'budget.allocate = "snl" starts from a trained network: it needs [plain] or model.weights'
        if self.budget and self.budget.leader == "data" and not trained:
            return 'budget.leader = "data" looks at a trained network: it needs [plain] or model.weights'
        return None

    def _teacher_problem(self) -> str | None:
        if self.teacher and self.teacher.distill:
            return "[teacher] learns from the labels alone: it takes no distill"
        if self.needs_teacher and not self.teacher:
            return "distillation needs [teacher], the GELU network; without it set distillation.weight = 0"
        return None

    def _beyond_problem(self) -> str | None:
        """What is wrong with options that go beyond the paper."""
        if self.method.switch_by == "sharpness" and not self.switch:
            return 'method.switch_by = "sharpness" needs [gelu] and [switch]: only soft gates become sharper'
        if self.method.start == "fitted" and not (self.method.affine and self.method.initial == "plain"):
            return 'method.start = "fitted" fits alpha and beta to a trained network: it needs method.initial = "plain"'
        if self.method.square and (self.method.name != "deepshare" or self.trimmed):
            return "method.square stands beside shared gates: it is for the method deepshare"
        if self.method.fade and (self.method.name != "deepshare" or self.trimmed):
            return "method.fade leads from ReLUs to shared gates: it is for the method deepshare"
        first = self.gelu or self.finetune
        if self.method.fade and not (first and self.method.fade <= first.epochs):
            name, epochs = "gelu" if self.gelu else "finetune", first.epochs if first else 0
            return f"method.fade is {self.method.fade} and [{name}] has {epochs} epochs: make it {epochs} or less"
        if self.distillation.after_gelu == "teacher" and not self.gelu:
            return 'distillation.after_gelu = "teacher" needs [gelu]: without it the teacher is that of all phases'
        if self.method.mapping == "learned" and not self.gelu:
            return 'method.mapping = "learned" needs [gelu]: only soft gates can be chosen by their gradient'
        if self.method.mapping == "learned" and self.trimmed:
            return 'method.mapping = "learned" chooses for replicates, and without them there are none'
        return self._hard_problem() or self._affine_problem() or self._pilot_problem() or self._leader_problem()

    def _hard_problem(self) -> str | None:
        method = self.method
        if method.soft:
            return None
        if method.name not in SHARING or not self.gelu:
            return "method.soft = false is for [gelu] and [switch], and without them gates are hard: take it away"
        if method.switch_by == "sharpness":
            return 'method.switch_by = "sharpness" makes soft gates sharper: take it or method.soft = false away'
        if method.sharpness != 1:
            return "method.sharpness is that of soft gates: take it or method.soft = false away"
        if method.mapping == "learned":
            return 'method.mapping = "learned" needs soft gates: take it or method.soft = false away'
        return None

    def _affine_problem(self) -> str | None:
        """What is wrong with options of groups and of alpha and beta that would do nothing."""
        if not self.method.decay_affine and (self.method.name not in SHARING or not self.method.affine):
            return "method.decay_affine = false is for alpha and beta, and here they are not learned: take it away"
        decays = any(phase.weight_decay for name, phase in self.phases.items() if name in RESULT_PHASES)
        if not self.method.decay_affine and not decays:
            return "method.decay_affine = false is for phases with weight_decay, and here none has any: take it away"
        if self.budget and self.budget.per_block and (not self.budget.layer_sharing or self.budget.max_group == 1):
            return "budget.per_block is for layers that share gates, and here none do: take it away"
        return None

    def _pilot_problem(self) -> str | None:
        allocate = self.budget.allocate if self.budget else ""
        if self.pilot and allocate not in PILOTED:
            return '[pilot] is for budget.allocate = "pruning" or "sensitivity" alone'
        if allocate == "pruning" and self.method.name not in DIVIDING:
            return f'budget.allocate = "pruning" is for methods that divide their budget: {", ".join(DIVIDING)}'
        if allocate == "pruning" and not self.pilot:
            return 'budget.allocate = "pruning" is measured on a copy that is trained sparse: it needs [pilot]'
        measured = allocate == "sensitivity"
        if measured and (self.method.name != "deepshare" or self.trimmed):
            return 'budget.allocate = "sensitivity" is measured on shared gates: it is for the method deepshare'
        if measured and not (self.pilot and self.gelu):
            return 'budget.allocate = "sensitivity" is measured after the first epochs: it needs [pilot] and [gelu]'
        return None

    def _leader_problem(self) -> str | None:
        budget = self.budget
        if budget is None or budget.leader == "first":
            return None
        if self.method.name not in SHARING or not budget.layer_sharing or budget.max_group == 1:
            return 'budget.leader = "data" chooses among the layers that share gates, and here none do'
        if self.plain and self.plain.model:
            return 'budget.leader = "data" looks at the same network with its ReLUs: take plain.model away'
        if budget.first_site_only:
            return 'budget.leader = "data" may make a first site linear: take budget.first_site_only away'
        return None
