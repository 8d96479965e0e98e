"""The loop against the same training written out by hand, and the gradients of the paper's phases."""

import copy
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

from deepshare.data import Augment, batches
from deepshare.data import load as load_data
from deepshare.data.batching import seed_of
from deepshare.methods.base import Method
from deepshare.methods.deepshare import DeepShare
from deepshare.sharing.gates import SharedReLU, set_progress
from deepshare.sharing.plan import Plan
from deepshare.sharing.planning import plan
from deepshare.training.api import fit
from deepshare.training.build import load, plain_network
from deepshare.training.data_source import make_data_source
from deepshare.training.loop import TrainContext, cross_entropy, distillation, learning_rate
from deepshare.training.recipe.files import Phase, Recipe, load_recipe
from deepshare.training.reporter import EpochLine, Reporter
from deepshare.training.run.checkpoint import WeightsHeader
from deepshare.training.run.folder import RunFolder
from deepshare.training.trainer import Trainer
from tests.training.small_runs import Small


def by_hand(model: nn.Module, recipe: Recipe, network: str, name: str, teacher: nn.Module | None) -> None:
    """One phase as the paper describes it."""
    phase: Phase = getattr(recipe, name)
    train = load_data("digits", validation=64, subset=128).train
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=5e-4)
    seed = seed_of(0, network, name)
    for epoch in range(phase.epochs):
        set_progress(model, {"gelu": 0.0, "switch": (epoch + 1) / phase.epochs}.get(name, 1.0))
        feed = batches(train, 64, seed=seed, epoch=epoch, augment=Augment(crop_padding=1), shuffle=True)
        for step, (images, labels) in enumerate(feed):
            logits = model.train()(images)
            loss = F.cross_entropy(logits, labels)
            if teacher is not None:
                with torch.no_grad():
                    target = teacher.eval()(images)
                divergence = F.kl_div(
                    F.log_softmax(logits / 4, 1), F.log_softmax(target / 4, 1), reduction="batchmean", log_target=True
                )
                loss = loss + divergence * 16
            optimiser.param_groups[0]["lr"] = learning_rate(phase, 2 * epoch + step, 2)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def test_the_plain_network_equals_training_by_hand(small: Small, tmp_path: Path) -> None:
    recipe = small(
        method__name="relu", budget=None, gelu=None, switch=None, finetune=None, plain__epochs=2, teacher=None
    )
    trained = fit(recipe=recipe, out=tmp_path / "run")
    model = plain_network(recipe, "plain")
    by_hand(model, recipe, "plain", "plain", None)
    for key, value in trained.state_dict().items():
        assert torch.equal(value, model.state_dict()[key]), key


def test_the_three_phases_equal_training_by_hand(small: Small, tmp_path: Path) -> None:
    recipe = small()
    trained = fit(recipe=recipe, out=tmp_path / "run")
    teacher = load(tmp_path / "run" / "teacher")
    planned = Plan.load(tmp_path / "run" / "plan.json")
    method = DeepShare(planned, start="uniform", seed=seed_of(0, "alpha and beta"))
    model = method.convert(plain_network(recipe, "shared"))
    by_hand(model, recipe, "shared", "gelu", teacher)
    soft = copy.deepcopy(model)
    by_hand(model, recipe, "shared", "switch", soft)
    by_hand(model, recipe, "shared", "finetune", soft)
    for key, value in trained.state_dict().items():
        assert torch.equal(value, model.state_dict()[key]), key


class TwoSites(nn.Module):
    """Two sites of one group, each fed with a half of the input: nothing but gates connects them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.first(x[:, :4]), self.second(x[:, 4:])], 1)


@pytest.mark.parametrize(("phase", "flows"), [("gelu", True), ("switch", False), ("finetune", False)])
def test_gradients_reach_the_prototypes_in_the_gelu_phase_and_not_after_the_switch(phase: str, flows: bool) -> None:
    model = TwoSites()
    method = DeepShare(plan(model, (8, 2, 2), 4))  # one prototype: channel 0
    shared = method.convert(model)
    assert [m.prototypes for m in shared.modules() if isinstance(m, SharedReLU)] == [1, 1]
    method.on_epoch_start(shared, phase, 2, 3)  # the last epoch of the switch
    x = torch.randn(3, 8, 2, 2, requires_grad=True)
    y = shared(x)
    for part in (y[:, 1:4], y[:, 4:]):  # the leader's replicates, and the follower
        (gradient,) = torch.autograd.grad(part.sum(), x, retain_graph=True)
        assert (gradient[:, 0].abs().sum() > 0) == flows
    (own,) = torch.autograd.grad(y[:, 0].sum(), x)
    assert own[:, 0].abs().sum() > 0


def test_the_switch_goes_from_the_last_channel_to_the_first_and_ends_all_hard() -> None:
    method = DeepShare(plan(TwoSites(), (8, 2, 2), 4))
    shared = method.convert(TwoSites())
    seen = []
    for epoch in range(4):
        method.on_epoch_start(shared, "switch", epoch, 4)
        seen.append(method.measures(shared)["hard_share"])
    assert seen == [0.25, 0.5, 0.75, 1.0]


class Counting(Method):
    """A method with a penalty, which ends a phase after its second epoch and remembers its epochs."""

    def __init__(self) -> None:
        self.epochs = 0

    def penalty(self, model: nn.Module) -> Tensor:
        return 1000 + 0 * next(model.parameters()).sum()

    def on_epoch_end(self, model: nn.Module, phase: str, epoch: int) -> bool:
        self.epochs += 1
        return epoch == 1

    def measures(self, model: nn.Module) -> dict[str, float]:
        return {"counted": float(self.epochs)}


class Remembering(Reporter):
    def __init__(self) -> None:
        self.lines: list[EpochLine] = []

    def epoch(self, line: EpochLine, seconds_left: float) -> None:
        self.lines.append(line)


def test_a_method_gives_a_penalty_and_may_end_a_phase(small: Small, fabric: Fabric, tmp_path: Path) -> None:
    recipe = small(plain__epochs=5)
    told = Remembering()
    setting = TrainContext(recipe, fabric, make_data_source(None, recipe), told)
    folder = RunFolder(tmp_path)
    assert recipe.plain
    phases = {"plain": recipe.plain, "more": recipe.plain.model_copy(update={"epochs": 1})}
    Trainer(setting, plain_network(recipe, "x"), Counting(), phases, folder, WeightsHeader("plain", (1, 8, 8))).run()
    assert [(line.phase, line.epoch) for line in told.lines] == [("plain", 1), ("plain", 2), ("more", 1)]
    assert all(1000 < line.loss < 1010 for line in told.lines)
    assert [line.measures["counted"] for line in told.lines] == [0.0, 1.0, 2.0]


def test_alpha_and_beta_decay_like_all_weights() -> None:
    method = DeepShare(plan(TwoSites(), (8, 2, 2), 4))
    shared = method.convert(TwoSites())
    optimiser = method.optimiser(shared, lr=0.1, momentum=0.9, weight_decay=0.5)
    for parameter in shared.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    values = dict(shared.named_parameters())
    assert set(values) == {"first.alpha", "first.beta", "second.alpha", "second.beta"}
    assert torch.allclose(values["first.alpha"], torch.full((4,), 0.95))


def test_cross_entropy_of_even_odds() -> None:
    assert cross_entropy(torch.zeros(3, 4), torch.tensor([0, 1, 3])).item() == pytest.approx(math.log(4))


def test_ignored_pixels_count_nowhere() -> None:
    logits = torch.tensor([[[[2.0, 0.0, 7.0]], [[0.0, 0.0, -3.0]]]])
    labels = torch.tensor([[[0, 1, 255]]])
    expected = (math.log(1 + math.exp(-2)) + math.log(2)) / 2
    assert cross_entropy(logits, labels, ignore=255).item() == pytest.approx(expected)


def test_an_image_without_a_label_costs_nothing() -> None:
    logits = torch.randn(1, 2, 3, 3, requires_grad=True)
    loss = cross_entropy(logits, torch.full((1, 3, 3), 255), ignore=255)
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert logits.grad.abs().sum() == 0


def test_distillation_by_hand() -> None:
    # At T = 4 the teacher says 3/4 and 1/4, the student 1/2 and 1/2: KL = log 2 - H(1/4).
    teacher = torch.tensor([[4 * math.log(3), 0.0]])
    expected = 16 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert distillation(torch.zeros(1, 2), teacher, 4.0).item() == pytest.approx(expected, rel=1e-5)


def test_distillation_is_a_mean_over_the_batch_and_zero_for_equals() -> None:
    teacher = torch.tensor([[4 * math.log(3), 0.0], [1.0, 1.0]])
    single = distillation(torch.zeros(1, 2), teacher[:1], 4.0)
    assert torch.isclose(distillation(torch.zeros(2, 2), teacher, 4.0), single / 2)
    assert distillation(teacher, teacher, 4.0).abs() < 1e-6


def test_high_temperature_leaves_the_scale_of_the_gradient() -> None:
    # T^2 makes up for the 1 / T^2 of the softened gradient, which tends to the difference of the centred logits / C.
    logits, teacher = torch.randn(5, 7, dtype=torch.double, requires_grad=True), torch.randn(5, 7, dtype=torch.double)
    (gradient,) = torch.autograd.grad(distillation(logits, teacher, 1e4), logits)
    difference = logits.detach() - teacher
    expected = (difference - difference.mean(1, keepdim=True)) / 7 / 5
    assert torch.allclose(gradient, expected, atol=1e-3)
    assert not torch.allclose(F.normalize(gradient), F.normalize(-expected))


def phase(schedule: str, **settings: object) -> Phase:
    return Phase.model_validate({"batch": 1, "weight_decay": 0.0, "schedule": schedule, **settings})


def test_linear_ends_at_three_quarters_of_the_phase() -> None:
    linear = phase("linear", epochs=100, lr=0.05, end_lr=5e-4)
    assert learning_rate(linear, 0, 10) == 0.05
    assert learning_rate(linear, 375, 10) == pytest.approx((0.05 + 5e-4) / 2)
    assert learning_rate(linear, 749, 10) > 5e-4
    assert learning_rate(linear, 750, 10) == learning_rate(linear, 999, 10) == 5e-4


def test_cosine() -> None:
    cosine = phase("cosine", epochs=4, lr=1.0, end_lr=0.2)
    assert learning_rate(cosine, 0, 3) == 1.0
    assert learning_rate(cosine, 6, 3) == pytest.approx(0.6)
    assert learning_rate(cosine, 4, 3) == pytest.approx(0.2 + 0.8 * 0.75)  # cos(60 degrees) = 1/2
    assert learning_rate(cosine, 11, 3) == pytest.approx(0.2 + 0.4 * (1 - math.cos(math.pi / 12)))


def test_poly() -> None:
    poly = phase("poly", epochs=2, lr=0.005, end_lr=1e-4)
    assert learning_rate(poly, 0, 5) == 0.005
    assert learning_rate(poly, 5, 5) == pytest.approx(1e-4 + 0.0049 * 0.5358867312681466)  # 0.5 ** 0.9


def test_steps_multiply_at_each_milestone() -> None:
    steps = phase("steps", epochs=200, lr=0.1, milestones=[0.3, 0.6, 0.8], factor=0.2)
    rates = [learning_rate(steps, epoch * 7, 7) for epoch in (0, 59, 60, 119, 120, 159, 160, 199)]
    assert rates == pytest.approx([0.1, 0.1, 0.02, 0.02, 0.004, 0.004, 0.0008, 0.0008])


def test_none_stays() -> None:
    assert {learning_rate(phase("none", epochs=3, lr=1e-3), step, 2) for step in range(6)} == {1e-3}


def test_every_falling_schedule_falls_at_every_step_of_the_paper() -> None:
    tiny = load_recipe("tiny-imagenet-resnet18-30k")
    assert tiny.gelu
    assert tiny.gelu.schedule == "cosine"
    rates = [learning_rate(tiny.gelu, step, 4) for step in range(400)]
    assert all(before > after for before, after in pairwise(rates))
    assert rates[0] == 0.05
    assert 1e-5 < rates[-1] < 2e-5
