"""The networks of a recipe one after the other: what each starts from, learns from and is saved as."""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from torch import Tensor, nn

from deepshare import methods
from deepshare.data import ImageSet, check_classes
from deepshare.data.about import About
from deepshare.data.seeds import seed_of
from deepshare.errors import CheckpointError, DataError, PlanMismatchError, RecipeError
from deepshare.methods.base import Method
from deepshare.methods.senet_pruning import Sparse, check_layers, relu_sensitivities
from deepshare.methods.square import curve, curved_relus
from deepshare.sharing.convert import count_gates
from deepshare.sharing.plan import Plan
from deepshare.sharing.sites import find_sites
from deepshare.training.allocation import leaders as leading
from deepshare.training.allocation import sensitivity
from deepshare.training.allocation.published import read_counts, weights
from deepshare.training.allocation.snl import find_counts
from deepshare.training.build import convert, gelu_network, output_shape, plain_network
from deepshare.training.evaluate import Result
from deepshare.training.hardware import together
from deepshare.training.loop import Setting
from deepshare.training.losses import mean_loss
from deepshare.training.method_factory import budget_of, make_method, planned
from deepshare.training.recipe.files import Phase
from deepshare.training.recipe.schema import RESULT_PHASES, SHARING, Budget
from deepshare.training.run.folder import RunFolder, describe_environment, own_lines
from deepshare.training.run.weights import Kind, Label, fill, plan_checksum, read_weights, write_file
from deepshare.training.shared_models import is_shared, plan_of, unshared
from deepshare.training.trainer import Training

T = TypeVar("T")
Role = Literal["teacher", "plain"]


@dataclass
class Fitting:
    """All networks of one recipe.

    Attributes:
        setting: What they are trained with.
        out: The run folder.
        given: The user's own network in the place of the recipe's.
        hardware: What the record says of it.
    """

    setting: Setting
    out: Path
    given: nn.Module | None
    hardware: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.recipe = self.setting.recipe
        self.input_size = self.setting.feed.input_size

    def run(self, resume: bool) -> nn.Module:
        """Train what the recipe describes, with all that it needs first."""
        run = RunFolder(self.out)
        base = self._together(lambda: self._checked(run, resume))
        planned = self._plan(base) if self.recipe.method.name in SHARING else None
        method = self._method(base, planned)
        self._together(lambda: _check_plan(run, planned))
        self._together(lambda: method.convert(base))  # what it cannot do is refused before anything is trained
        self._begin(run, planned)
        trained = self._plain(run) if self.recipe.method.name == "relu" else self._result(run, method, planned)
        self._finish(run, trained, base)
        return trained

    def teach(self, resume: bool) -> nn.Module:
        """Train no more than the teacher with GELUs, into the run folder itself."""
        run = RunFolder(self.out)
        base = self._together(lambda: self._checked(run, resume))
        trained = self._gelu(run)
        self._finish(run, trained, base)
        return trained

    def allocate(self, resume: bool) -> dict[str, int]:
        """Train no more than what SNL needs, and SNL."""
        base = self._together(lambda: self._checked(RunFolder(self.out), resume))
        self._together(lambda: self._planned(base, None))  # a budget that cannot be met is refused before training
        return self._snl()

    def _together(self, check: Callable[[], T]) -> T:
        return together(self.setting.fabric, check)

    def _checked(self, run: RunFolder, resume: bool) -> nn.Module:
        """The network, once it is known that it fits the data, and what was given fits it and the folder."""
        base = self._base("shared", self.setting.reporter.note)
        source = self.setting.feed.train_set
        _, outputs, *pixels = output_shape(base, self.input_size)
        if bool(pixels) != self.setting.feed.segmentation:
            has, gives = ("pixel", "image") if self.setting.feed.segmentation else ("image", "pixel")
            raise DataError(
                f"{source.name} has a class for each {has} but {type(base).__name__} gives one for each {gives}: "
                "give other data or another network"
            )
        if not isinstance(source, ImageSet) and outputs != self.recipe.model.num_classes:
            raise RecipeError(
                f"the recipe has model.num_classes = {self.recipe.model.num_classes} but the model has {outputs} "
                "outputs: change model.num_classes"
            )
        check_classes(source.name, len(source.classes), outputs)
        run.check(self.recipe, resume=resume, images=self.setting.feed.checksum)
        given: tuple[Role, ...] = ("teacher", "plain")
        for name in given:
            if self._finished(name):
                self.setting.reporter.note(f"{name}: taken from {getattr(self.recipe, name).weights}")
        return base

    def _finished(self, name: Role) -> nn.Module | None:
        """The trained network that the recipe gives in the place of one to be trained."""
        path = getattr(self.recipe.phases.get(name), "weights", None)
        if path is None:
            return None
        kind: Kind = "gelu" if name == "teacher" else "plain"
        file = RunFolder(Path(path)).model if Path(path).is_dir() else Path(path)
        return _filled(convert(self._base(name), kind, self.input_size, None), file, kind, None)

    def _base(self, role: str, tell: Callable[[str], None] | None = None) -> nn.Module:
        """The plain network before training."""
        if self.given is None or self.recipe.model_of(role) != self.recipe.model:
            return plain_network(self.recipe, role, tell)
        return unshared(self.given)

    def _plan(self, base: nn.Module) -> Plan:
        if self.given is not None and is_shared(self.given):
            if not self.recipe.method.square and any(True for _ in curved_relus(self.given)):
                raise RecipeError("the network has squares beside its shared gates: set method.square = true")
            return plan_of(self.given, self.input_size)
        self._together(lambda: self._planned(base, None))  # a budget that cannot be met is refused before training
        leaders = self._leaders(base)
        return self._planned(base, self._weights(base, leaders), leaders)

    def _weights(self, base: nn.Module, leaders: Sequence[str] = ()) -> Mapping[str, float] | None:
        match self._budget().allocate:
            case "snl":
                return self._snl()
            case "sensitivity":
                return self._sensitivity(base, leaders)
            case "pruning":
                return self._pruning(base)
            case allocate:
                return weights(allocate, find_sites(base, self.input_size))

    def _method(self, base: nn.Module, planned: Plan | None) -> Method:
        settings = self.recipe.method
        if settings.name == "relu":
            return methods.get("relu")()
        if planned:
            return self._sharing(planned)
        dry = self.setting.dry
        if settings.name != "senet":
            return make_method(self.recipe, base, self.input_size, dry=dry)
        make_method(self.recipe, base, self.input_size).convert(base)  # before a run of SNL for the weights
        return make_method(self.recipe, base, self.input_size, self._weights(base), dry=dry)

    def _sharing(self, planned: Plan) -> Method:
        settings, seed = self.recipe.method, seed_of(self.recipe.seed, "alpha and beta")
        # Nobody says whether a network that was given is trained; from a trained one only this start is right.
        start = settings.start or ("identity" if self.given is not None else self.recipe.start)
        return methods.get("trimmed" if self.recipe.trimmed else "deepshare")(
            plan=planned,
            start=start,
            sharpness=settings.sharpness,
            seed=seed,
            switch_by=settings.switch_by,
            square=settings.square,
            fade=settings.fade,
            fade_in="gelu" if self.recipe.gelu else "finetune",
            soft=settings.soft,
            decay_affine=settings.decay_affine,
        )

    def _planned(self, base: nn.Module, shares: Mapping[str, float] | None, leaders: Sequence[str] = ()) -> Plan:
        return planned(self.recipe, base, self.input_size, shares, leaders)

    def _budget(self) -> Budget:
        return budget_of(self.recipe)

    def _snl(self) -> dict[str, int]:
        """The count of gates that each site of the trained plain network wants."""
        self._begin(RunFolder(self.out), None)
        plain = self._plain(RunFolder(self.out / "plain"))
        run = RunFolder(self.out / "snl")
        self._begin(run, None)
        return find_counts(self.setting, plain, self.input_size, run)

    def _leaders(self, base: nn.Module) -> Sequence[str]:
        """The sites that should lead their groups, by what the gates of the trained plain network say."""
        if self._budget().leader == "first":
            return ()
        self._begin(RunFolder(self.out), None)
        groups, plain = self._planned(base, None), self._plain(RunFolder(self.out / "plain"))
        images = (images for images, _ in self._draw(leading.SAMPLES))
        network = plain.to(self.setting.fabric.device)
        scores = self._once(self.out / "leaders.json", lambda: leading.explained(network, groups, images))
        return leading.preferred(groups, scores)

    def _sensitivity(self, base: nn.Module, leaders: Sequence[str]) -> dict[str, float]:
        """What the groups weigh by the loss of a pilot, which has the same share of channels in every group."""
        self._begin(RunFolder(self.out), None)
        planned = self._planned(base, None, leaders)
        if planned.mapping == "learned":  # later, among the prototypes that there will be
            planned = replace(planned, mapping="round-robin")
        method, run = self._sharing(planned), RunFolder(self.out / "pilot")
        start = method.convert(self._start())
        network = self._train(run, "shared", start, method, ("pilot",), planned=planned, teacher=self._teacher())
        method.start_epoch(network.eval().to(self.setting.fabric.device), "pilot", 0, 1)
        loss = mean_loss(self._draw(sensitivity.SAMPLES), self.setting.feed.ignore)
        return self._once(run.path / "weights.json", lambda: sensitivity.sensitivities(network, planned, loss))

    def _pruning(self, base: nn.Module) -> dict[str, float]:
        """What the sites weigh by the weights that a pilot, a copy of the plain network, keeps in sparse training."""
        sites = find_sites(base, self.input_size)
        self._together(lambda: check_layers(sites))
        self._begin(RunFolder(self.out), None)
        run = RunFolder(self.out / "pilot")
        network = self._train(run, "plain", self._start(), Sparse(), ("pilot",), teacher=self._teacher())
        return self._once(run.path / "weights.json", lambda: relu_sensitivities(network, sites))

    def _draw(self, count: int) -> list[tuple[Tensor, Tensor]]:
        batch, device = list(self.recipe.phases.values())[-1].batch, self.setting.fabric.device
        drawn = self.setting.feed.draw(1 if self.setting.dry else count, batch)
        return [(images.to(device), labels.to(device)) for images, labels in drawn]

    def _once(self, path: Path, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Measure in the first process, and write it down for all others and for a run that is resumed."""
        found: dict[str, float] = {}
        if self.setting.fabric.is_global_zero:
            if not path.exists():
                write_file(path, (json.dumps(measure(), indent=1) + "\n").encode())
            found = read_counts(path)
        return self.setting.fabric.broadcast(found)

    def _plain(self, run: RunFolder) -> nn.Module:
        if self.recipe.plain is None:  # then its weights were given
            return self._base("plain")
        if finished := self._finished("plain"):
            return finished
        teacher = self._gelu() if self._phase("plain").distill else None
        return self._train(run, "plain", self._base("plain"), Method(), ("plain",), teacher=teacher)

    def _gelu(self, run: RunFolder | None = None) -> nn.Module:
        if finished := self._finished("teacher"):
            return finished
        network = gelu_network(self._base("teacher"), self.input_size)
        return self._train(run or RunFolder(self.out / "teacher"), "gelu", network, Method(), ("teacher",))

    def _teacher(self) -> nn.Module | None:
        if self.recipe.distillation.teacher == "plain":
            return self._plain(RunFolder(self.out / "plain")) if self.recipe.needs_plain else None
        return self._gelu() if self.recipe.needs_teacher else None

    def _result(self, run: RunFolder, method: Method, planned: Plan | None) -> nn.Module:
        teacher = self._teacher()
        if self.given is not None and is_shared(self.given):
            network = copy.deepcopy(self.given)
            if self.recipe.method.square:
                curve(network)
        else:
            network = method.convert(self._start())
            if self._budget().allocate == "sensitivity":
                _go_on(network, RunFolder(self.out / "pilot").model)
        names = tuple(name for name in RESULT_PHASES if name != "pilot" and getattr(self.recipe, name))
        kind: Kind = "shared" if planned else "gated"
        return self._train(run, kind, network, method, names, planned=planned, teacher=teacher)

    def _start(self) -> nn.Module:
        """The plain network that the result is made from."""
        from_plain = self.recipe.method.initial == "plain"
        return self._plain(RunFolder(self.out / "plain")) if from_plain else self._base("shared")

    def _train(
        self,
        run: RunFolder,
        kind: Kind,
        network: nn.Module,
        method: Method,
        names: tuple[str, ...],
        *,
        planned: Plan | None = None,
        teacher: nn.Module | None = None,
    ) -> nn.Module:
        """Train a network, unless that was finished before the run was interrupted."""
        if run.model.exists():
            if self.setting.fabric.is_global_zero:
                run.clean()
            method.form(network, names[-1])
            return _filled(network, run.model, kind, planned)
        self._begin(run, planned)
        label = Label(kind, self.input_size, plan_checksum(planned), own=self.given is not None)
        phases = {name: self._phase(name) for name in names}
        return Training(self.setting, network, method, phases, run, label, teacher).run()

    def _phase(self, name: str) -> Phase:
        phase: Phase = getattr(self.recipe, name)
        return phase.model_copy(update={"distill": self.recipe.distill_weight(name)})

    def _begin(self, run: RunFolder, planned: Plan | None) -> None:
        if self.setting.fabric.is_global_zero:
            ran_on = describe_environment(self.recipe.seed, self.hardware, self.setting.feed.checksum)
            run.begin(self.recipe, ran_on, planned, self._about())
        self.setting.fabric.barrier()

    def _about(self) -> About | None:
        source = self.setting.feed.train_set
        return About.of(source, self.input_size) if isinstance(source, ImageSet) else None

    def _finish(self, run: RunFolder, network: nn.Module, base: nn.Module) -> None:
        """Write the final figures, of the last weights and of the best."""
        if self.setting.dry or run.result.exists() or not self.setting.fabric.is_global_zero:
            return
        batch = list(self.recipe.phases.values())[-1].batch
        figures = {"last": _figures(self.setting.feed.test(network, batch))}
        chosen = copy.deepcopy(network)
        fill(chosen, read_weights(run.best)[0], run.best)
        figures["best"] = _figures(self.setting.feed.test(chosen, batch))
        result = {
            "gates": count_gates(network, self.input_size),
            "neurons": find_sites(base, self.input_size).neurons,
            "test": figures,
            "seconds": round(sum(line["seconds"] for line in own_lines(run)), 1),
        }
        write_file(run.result, (json.dumps(result, indent=1) + "\n").encode())


def _figures(result: Result | None) -> dict[str, float] | None:
    return None if result is None else {key: value for key, value in asdict(result).items() if value is not None}


def _filled(network: nn.Module, path: Path, kind: Kind, planned: Plan | None) -> nn.Module:
    tensors, label = read_weights(path)
    if label.network != kind or label.plan != plan_checksum(planned):
        raise CheckpointError(f"{path} is a {label.network} network where a {kind} one is due: give another")
    fill(network, tensors, path)
    return network


def _go_on(network: nn.Module, pilot: Path) -> None:
    """Take over what a pilot has learned; only who uses which prototype may have changed since."""
    pi = {key: value for key, value in network.state_dict().items() if key.endswith(".pi")}
    fill(network, {**read_weights(pilot)[0], **pi}, pilot)


def _check_plan(run: RunFolder, planned: Plan | None) -> None:
    if planned and run.plan.exists() and Plan.load(run.plan) != planned:
        raise PlanMismatchError(f"{run.plan} is another plan than the recipe's: give another folder")
