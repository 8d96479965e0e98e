"""What goes beyond the paper, from the recipe to the finished network: within the budget, and resumed bit for bit."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from deepshare.errors import BudgetError, RecipeError
from deepshare.private.api import check_plan
from deepshare.private.ir.trace import translate
from deepshare.sharing.convert import count_gates
from deepshare.sharing.gates import fading, hard_share, shared_relus
from deepshare.sharing.onnx import export_onnx
from deepshare.sharing.plan import Plan
from deepshare.study.report.plan_picture import plan_section
from deepshare.study.report.run import read
from deepshare.training.api import fit
from deepshare.training.build import load
from deepshare.training.catalog import record
from deepshare.training.recipe.files import Recipe, load_recipe
from deepshare.training.trainer import Trainer
from tests.training.small_runs import StopAfter, StoppedError

SIZE = (1, 8, 8)
PHASE = {"epochs": 2, "batch": 32, "lr": 0.05, "schedule": "none", "weight_decay": 0.0}
SMALL = {
    "model.arguments": {"width": 4, "channels": 1, "depth": 10},
    "data.subset": 96,
    "data.validation": 32,
    "teacher.epochs": 0,
    "plain.epochs": 1,
    "distillation.teacher": "plain",
    "budget": {"gates": 192, "allocate": "uniform"},
    "gelu": PHASE,
    "switch": PHASE,
    "finetune": {**PHASE, "epochs": 1},
}
PILOT: dict[str, object] = {"budget.allocate": "sensitivity", "pilot": {**PHASE, "epochs": 1}}
VARIANTS: dict[str, dict[str, object]] = {
    "learned pi": {"method.mapping": "learned"},
    "leader": {"budget.leader": "data"},
    "annealed": {"method.switch_by": "sharpness"},
    "sensitivity": PILOT,
    "fitted": {"method.start": "fitted", "method.initial": "plain"},
    "squares": {"method.square": True, "method.fade": 2, "method.start": "fitted", "method.initial": "plain"},
    "faded": {"method.fade": 2, "method.start": "fitted", "method.initial": "plain"},
    "hard": {"method.soft": False},
    "no decay": {"method.decay_affine": False, "gelu.weight_decay": 0.1},
    "per block": {"budget.per_block": True},
    "taught": {"distillation.after_gelu": "teacher"},
    "all": {"method.mapping": "learned", "budget.leader": "data", "method.switch_by": "sharpness", **PILOT},
}


def recipe(name: str = "", /, **overrides: object) -> Recipe:
    return load_recipe("digits", {**SMALL, **VARIANTS.get(name, {}), **overrides})


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module", params=VARIANTS)
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("run") / "run"
    fit(recipe=recipe(request.param), out=folder)
    return request.param, folder


def test_the_result_is_an_ordinary_network_within_the_budget(finished: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = finished
    network, plan = load(folder), Plan.load(folder / "plan.json")
    assert count_gates(network, SIZE) == plan.gates == json.loads((folder / "result.json").read_text())["gates"] <= 192
    assert hard_share(network) == 1
    assert all(site.preference is None for site in shared_relus(network))
    program = translate(network, SIZE)
    check_plan(program, plan)
    assert sum(operation.comparisons for operation in program.operations) == plan.gates
    if name == "all":
        export_onnx(network, tmp_path / "network.onnx", SIZE)
    epochs = record(folder).epochs
    assert {phase: epochs[phase] for phase in ("gelu", "switch", "finetune")} == {"gelu": 2, "switch": 2, "finetune": 1}


def test_the_network_is_rebuilt_from_the_folder_alone(finished: tuple[str, Path]) -> None:
    name, folder = finished
    images = torch.randn(4, *SIZE)
    again = fit(recipe=recipe(name), out=folder, resume=True)
    assert torch.equal(load(folder)(images), again(images))


@pytest.mark.parametrize("finished", ["learned pi", "squares", "faded", "no decay", "all"], indirect=True)
def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(
    finished: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, whole = finished
    out, replace = tmp_path / "run", os.replace
    measured = [file for file in ("leaders.json", "weights.json") if list(whole.rglob(file))]

    def failing(source: str, target: Path) -> None:
        if Path(target).name in measured:
            measured.remove(Path(target).name)
            raise StoppedError
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    for _ in list(measured):
        with pytest.raises(StoppedError):
            fit(recipe=recipe(name), out=out, resume=True)
    for stop in [("gelu", 1), ("gelu", 2), ("switch", 1)]:
        with pytest.raises(StoppedError):
            fit(recipe=recipe(name), out=out, resume=True, reporter=StopAfter(*stop))
    fit(recipe=recipe(name), out=out, resume=True)
    for file in ("model.safetensors", "best.safetensors", "plan.json"):
        assert (out / file).read_bytes() == (whole / file).read_bytes()


@pytest.mark.parametrize("finished", ["learned pi", "all"], indirect=True)
def test_pi_is_learned_in_the_gelu_phase_and_stays_as_it_is(finished: tuple[str, Path]) -> None:
    _, folder = finished
    moved = [line["moved"] for line in lines(folder)]
    assert moved[1] > 0
    assert moved[1:] == [moved[1]] * 4
    sites = list(shared_relus(load(folder)))
    assert sum(site.moved for site in sites) == round(moved[-1] * sum(site.channels for site in sites))
    for leader in (site for site in sites if site.position == 0):
        assert leader.pi[: leader.prototypes].tolist() == list(range(leader.prototypes))
    shown = read(folder, "no images")
    assert list(shown.pi.values()) == [site.pi.tolist() for site in sites]
    drawn = [node.text or "" for node in plan_section(Plan.load(folder / "plan.json"), shown.pi).iter("title")]
    name, pi = next(iter(shown.pi.items()))  # of a leader, whose prototype is none of its replicates
    assert f"{name}: gate {pi[-1]} serves {pi.count(pi[-1]) - 1} replicates" in drawn


@pytest.mark.parametrize("finished", ["annealed", "all"], indirect=True)
def test_gates_are_soft_until_the_last_epoch_of_the_switch(finished: tuple[str, Path]) -> None:
    _, folder = finished
    seen = [(line["phase"], line["hard_share"], line.get("sharpness")) for line in lines(folder)]
    assert seen == [
        ("gelu", 0, 1),
        ("gelu", 0, 1),
        ("switch", 0, 2),
        ("switch", 1, None),
        ("finetune", 1, None),
    ]


@pytest.mark.parametrize("finished", ["sensitivity", "all"], indirect=True)
def test_the_pilot_is_gone_on_with_under_the_plan_that_it_led_to(finished: tuple[str, Path]) -> None:
    _, folder = finished
    weights = json.loads((folder / "pilot" / "weights.json").read_text())
    plan, pilot = (Plan.load(path / "plan.json") for path in (folder, folder / "pilot"))
    assert {name for name, weight in weights.items() if weight} <= {group.leader.name for group in plan.groups}
    assert [group.prototypes for group in plan.groups] != [group.prototypes for group in pilot.groups]
    assert [group.leader for group in plan.groups] == [group.leader for group in pilot.groups]
    assert record(folder).epochs["pilot"] == 1
    seconds = sum(line["seconds"] for line in lines(folder) + lines(folder / "pilot"))
    assert record(folder).seconds == pytest.approx(seconds, abs=0.06)


def test_who_teaches_after_the_gelu_phase(tmp_path: Path) -> None:
    for name in ("", "taught"):
        fit(recipe=recipe(name), out=tmp_path / f"run{name}")
    itself, taught = lines(tmp_path / "run"), lines(tmp_path / "runtaught")
    losses = [[(line["phase"], line["loss"]) for line in run] for run in (itself, taught)]
    assert losses[0][:2] == losses[1][:2]
    assert all(own != other for own, other in zip(losses[0][2:], losses[1][2:], strict=True))


def test_sites_before_the_preferred_one_become_linear(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(StoppedError):
        fit(recipe=recipe("leader"), out=out, reporter=StopAfter("plain", 1))
    names = [f"layer{stage}.0.act{number}" for stage in (1, 2, 3, 4) for number in (1, 2)]
    (out / "leaders.json").write_text(json.dumps({name: float(name.endswith("act2")) for name in names}))
    fit(recipe=recipe("leader"), out=out, resume=True)
    plan = Plan.load(out / "plan.json")
    assert [group.lead for group in plan.groups] == [1, 1, 1, 1]
    assert count_gates(load(out), SIZE) == plan.gates <= 192
    assert isinstance(load(out).get_submodule("layer1.0.act1"), torch.nn.Identity)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"method.switch_by": "sharpness", "gelu": None, "switch": None}, "needs [gelu] and [switch]"),
        ({"method.mapping": "learned", "gelu": None, "switch": None}, 'method.mapping = "learned" needs [gelu]'),
        (
            {
                "method.mapping": "learned",
                "method.name": "trimmed",
                "method.affine": False,
                "budget.layer_sharing": False,
            },
            "without them there are none",
        ),
        ({"budget.allocate": "sensitivity"}, "needs [pilot] and [gelu]"),
        ({**PILOT, "gelu": None, "switch": None}, "needs [pilot] and [gelu]"),
        ({"pilot": PHASE}, '[pilot] is for budget.allocate = "pruning" or "sensitivity" alone'),
        (
            {**PILOT, "method.name": "trimmed", "method.affine": False, "budget.layer_sharing": False},
            "it is for the method deepshare",
        ),
        ({"budget.leader": "data", "budget.layer_sharing": False}, "and here none do"),
        ({"budget.leader": "data", "budget.max_group": 1}, "and here none do"),
        ({"budget.leader": "data", "budget.first_site_only": True}, "take budget.first_site_only away"),
        ({"budget.leader": "data", "plain.model": {"name": "resnet18", "num_classes": 10}}, "take plain.model away"),
        (
            {"budget.leader": "data", "plain": None, "distillation": {"weight": 0.0}},
            "it needs [plain] or model.weights",
        ),
        ({"method.switch_by": "patience"}, "method.switch_by"),
        (
            {"method.fade": 1, "method.name": "trimmed", "method.affine": False, "budget.layer_sharing": False},
            "method.fade leads from ReLUs to shared gates: it is for the method deepshare",
        ),
        ({"method.soft": False, "gelu": None, "switch": None}, "method.soft = false is for [gelu] and [switch]"),
        ({"method.soft": False, "method.switch_by": "sharpness"}, "take it or method.soft = false away"),
        ({"method.soft": False, "method.sharpness": 2.0}, "take it or method.soft = false away"),
        ({"method.soft": False, "method.mapping": "learned"}, "take it or method.soft = false away"),
        ({"method.decay_affine": False, "method.affine": False}, "here they are not learned: take it away"),
        ({"method.decay_affine": False}, "here none has any: take it away"),
        ({"budget.per_block": True, "budget.layer_sharing": False}, "here none do: take it away"),
        ({"budget.per_block": True, "budget.max_group": 1}, "here none do: take it away"),
        ({"method.fade": 3, "method.square": True}, "fade is 3 and [gelu] has 2 epochs"),
        (
            {"method.square": True, "method.name": "trimmed", "method.affine": False, "budget.layer_sharing": False},
            "is for the method deepshare",
        ),
        (
            {
                "method.square": True,
                "method.replicates": False,
                "method.affine": False,
                "budget.layer_sharing": False,
            },
            "is for the method deepshare",
        ),
        ({"method.start": "fitted"}, 'it needs method.initial = "plain"'),
        ({"method.start": "fitted", "method.initial": "plain", "method.affine": False}, "fits alpha and beta"),
        ({"distillation.after_gelu": "teacher", "gelu": None, "switch": None}, "needs [gelu]"),
    ],
)
def test_what_makes_no_sense_is_refused(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe(**overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["leader", "sensitivity"])
def test_a_budget_that_cannot_be_met_is_refused_before_anything_is_trained(name: str, tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="below the minimum"):
        fit(recipe=recipe(name, **{"budget.gates": 5}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("finished", ["hard"], indirect=True)
def test_without_soft_gates_every_epoch_is_hard(finished: tuple[str, Path]) -> None:
    assert [line["hard_share"] for line in lines(finished[1])] == [1.0] * 5


@pytest.mark.parametrize("finished", ["faded", "squares"], indirect=True)
def test_the_share_of_the_own_relu_is_the_same_with_and_without_squares(finished: tuple[str, Path]) -> None:
    assert [line["own_relu"] for line in lines(finished[1])] == [0.25, 0.0, 0.0, 0.0, 0.0]
    assert all(site.own == 0 for _, site in fading(load(finished[1])))


def test_what_a_faded_gelu_phase_ended_with_teaches_without_own_relus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[tuple[str, float]] = []
    teacher_of = Trainer._teacher

    def watched(training: Trainer, name: str) -> nn.Module | None:
        teacher = teacher_of(training, name)
        if teacher is not None and name != "gelu":
            seen.append((name, next(fading(teacher))[1].own))
        return teacher

    monkeypatch.setattr(Trainer, "_teacher", watched)
    fit(recipe=recipe("faded"), out=tmp_path / "run")
    assert seen == [("switch", 0.0), ("finetune", 0.0)]


@pytest.mark.parametrize("finished", ["per block"], indirect=True)
def test_layers_share_within_a_block_only(finished: tuple[str, Path]) -> None:
    plan = Plan.load(finished[1] / "plan.json")
    assert [len(group.sites) for group in plan.groups] == [2, 2, 2, 2]
    assert all(len({site.block for site in group.sites}) == 1 for group in plan.groups)


def test_a_dry_run_goes_through_all_phases(tmp_path: Path) -> None:
    fit(recipe=recipe("all"), out=tmp_path / "run", dry_run=True)
    assert not (tmp_path / "run").exists()
