"""A study that counts the epochs of what methods start from, and has a second teacher, with GELUs."""

import hashlib
import tomllib
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from deepshare.errors import RecipeError
from deepshare.methods.deepshare import DeepShareOptions
from deepshare.sharing.convert import count_gates
from deepshare.sharing.sites import find_sites
from deepshare.study.compare.outcome import RunOutcome
from deepshare.study.compare.page import as_markdown
from deepshare.study.compare.run import Workspace
from deepshare.study.compare.runner import Limits, Runner, jobs
from deepshare.study.compare.study_file import GELU_TEACHER, TEACHER, Job, Study, load_study, own_epochs, recipe_of
from deepshare.training.api import teach
from deepshare.training.build import load, make_plan, plain_network
from deepshare.training.catalog import record
from deepshare.training.recipe.files import differences, load_recipe
from deepshare.training.reporter import Reporter
from tests.study.compare.digits import DIGITS

SNL, PLAIN, SHARED = Job("snl", "few", 96), Job("relu", "few"), Job("deepshare", "few", 96)
GELUS = Job(GELU_TEACHER, "few")


def values() -> dict[str, Any]:
    """Digits with 5 epochs in all: 2 of the teacher and 3 after it, or 5 from scratch."""
    study = tomllib.loads(DIGITS.read_text())
    study |= {"epochs": 5, "count_start": True, "passes": study["passes"][:1]}
    study["recipe"]["teacher"] = {"epochs": 1}
    study["methods"]["relu"]["recipe"]["plain"]["epochs"] = 5
    study["methods"]["deepshare"]["recipe"]["gelu"]["epochs"] = 3
    study["methods"]["deepshare"]["recipe"]["distillation"] = {"teacher": "gelu"}
    study["methods"]["deepshare"]["kept"] = True
    study["passes"][0] |= {"methods": ["snl", "relu", "deepshare"], "budgets": [96]}
    del study["methods"]["trimmed"]
    return study


def made(study: dict[str, Any], folder: Path) -> Study:
    file = folder / "counted.toml"
    file.write_text("\n".join(_toml(study)))
    return load_study(str(file))


def _toml(study: dict[str, Any]) -> list[str]:
    """As inline tables, which need no sections."""
    return [f"{key} = {_value(value)}" for key, value in study.items()]


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}" = {_value(inner)}' for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def run(runner: Runner, *methods: str) -> list[str]:
    done: list[RunOutcome] = []
    runner.run(Limits(methods=methods), Reporter, done.append)
    return [outcome.job.method for outcome in done]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """The study run to its end; not to be changed."""
    folder = tmp_path_factory.mktemp("whole")
    runner = Runner(made(values(), folder), Workspace(folder / "work", folder / "out"))
    assert run(runner) == [TEACHER, "snl", "relu", GELU_TEACHER, "deepshare"]
    return runner


def sha256(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_what_starts_from_the_teacher_has_its_epochs_counted(tmp_path: Path) -> None:
    study = made(values(), tmp_path)
    assert {job.method: own_epochs(study, job) for job in (SNL, PLAIN, SHARED)} == {
        "snl": 3,
        "relu": 5,
        "deepshare": 5,
    }
    wrong = values()
    wrong["methods"]["snl"]["recipe"]["search"]["epochs"] = 4
    with pytest.raises(RecipeError, match=r"method snl: it has 5 epochs after 2 and every method has 5 in all"):
        made(wrong, tmp_path)
    wrong = values()
    wrong["methods"]["deepshare"]["recipe"]["gelu"]["epochs"] = 1
    with pytest.raises(RecipeError, match=r"method deepshare: it has 3 epochs and every method has 5"):
        made(wrong, tmp_path)


def test_a_method_chooses_the_teacher_with_gelus_only_where_there_is_one(tmp_path: Path) -> None:
    study = made(values(), tmp_path)
    assert [job.method for job in jobs(study, {})] == [TEACHER, "snl", "relu", GELU_TEACHER, "deepshare"]
    assert study.teachers_of(SHARED) == [GELUS]
    assert study.teachers_of(SNL) == [Job(TEACHER, "few")]
    wrong = values()
    wrong["recipe"]["teacher"] = {"epochs": 0}
    with pytest.raises(RecipeError, match=r"distillation.teacher is the same for all methods"):
        made(wrong, tmp_path)
    wrong = values()
    wrong["methods"][GELU_TEACHER] = wrong["methods"].pop("snl")
    with pytest.raises(RecipeError, match="every study has a teacher of its own"):
        made(wrong, tmp_path)


def test_the_teacher_with_gelus_is_trained_once_and_learned_from(whole: Runner) -> None:
    outcomes = whole.outcomes()
    trained = outcomes[GELUS].run
    assert trained is not None
    assert (trained.gates, trained.epochs) == (0, {"teacher": 1})
    network = load(whole.out / GELUS.name)
    assert sum(isinstance(module, nn.GELU) for module in network.modules()) == 8
    assert not any(isinstance(module, nn.ReLU) for module in network.modules())
    recipe = (whole.workspace.work / SHARED.name / "recipe.toml").read_text()
    assert str(whole.out / GELUS.name) in recipe
    assert not (whole.workspace.work / SHARED.name / "teacher").exists()
    assert outcomes[SHARED].teachers == {"gelu": sha256(whole.out / GELUS.name)}
    assert outcomes[GELUS].weights == sha256(whole.out / GELUS.name)


def test_results_keep_curve_counts_and_checksums(whole: Runner) -> None:
    outcomes = whole.outcomes()
    snl, plain = outcomes[SNL], outcomes[PLAIN]
    assert snl.run is not None and plain.run is not None and snl.curve and plain.curve
    assert {phase: len(curve) for phase, curve in snl.curve.items()} == {"search": 2, "finetune": 1}
    assert snl.curve["finetune"][-1] == snl.run.validation
    assert snl.site_gates is not None and plain.site_gates is not None
    assert len(snl.site_gates) == 8
    assert sum(snl.site_gates.values()) == 96
    assert sum(plain.site_gates.values()) == plain.run.neurons == 1920
    assert snl.teachers == {"plain": sha256(whole.out / "few-teacher-seed0")}
    assert plain.teachers is None  # from scratch
    assert {phase: len(curve) for phase, curve in plain.curve.items()} == {"plain": 5}
    shared = outcomes[SHARED].site_gates
    assert shared is not None
    assert sum(shared.values()) == 96
    assert sum(count > 0 for count in shared.values()) == 4  # leaders alone


def test_networks_of_a_method_that_says_so_are_kept_without_local_paths(whole: Runner) -> None:
    assert sorted(folder.name for folder in whole.out.iterdir() if folder.is_dir()) == sorted(
        [f"few-{TEACHER}-seed0", GELUS.name, SHARED.name]
    )
    kept, outcome = whole.out / SHARED.name, whole.outcomes()[SHARED]
    assert sha256(kept) == outcome.weights
    assert count_gates(load(kept), (1, 8, 8)) == 96
    assert record(kept).best == (outcome.run and outcome.run.best)
    assert str(whole.workspace.work.parent) not in "".join(file.read_text() for file in kept.glob("[!m]*.*"))


def test_plain_training_from_scratch_does_not_go_on_from_the_teacher(whole: Runner) -> None:
    assert "weights" not in (whole.workspace.work / PLAIN.name / "recipe.toml").read_text()


def test_its_page_says_how_epochs_are_counted(whole: Runner) -> None:
    page = as_markdown(whole.study, whole.outcomes(), [])
    assert "Every method has 5 epochs in all: one that starts from the teacher has the teacher's counted" in page
    assert "ended early" not in page
    assert "the teacher with GELUs" in page


def test_one_method_alone_waits_for_its_own_teachers_only(tmp_path: Path) -> None:
    runner = Runner(made(values(), tmp_path), Workspace(tmp_path / "work", tmp_path / "out"))
    assert [job.method for job in runner.open({}, Limits(methods=("snl",)))] == [TEACHER, "snl"]
    assert [job.method for job in runner.open({}, Limits(methods=("deepshare",)))] == [GELU_TEACHER, "deepshare"]


def test_a_plain_teacher_that_no_run_needs_is_not_trained() -> None:
    ablations = load_study("fair-ablations")
    assert {job.method for job in jobs(ablations, {})} == {GELU_TEACHER, *ablations.methods}


def test_a_recipe_without_a_teacher_has_none_to_train(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="has no network with GELUs to train"):
        teach(recipe=load_recipe("digits-plain", {"teacher.epochs": 0}), out=tmp_path / "run")


def test_the_ceiling_has_every_gate_and_nothing_else() -> None:
    study = load_study("fair")
    recipe = recipe_of(study, Job("ceiling", "subset", 122880))
    assert recipe.budget is not None and not recipe.budget.layer_sharing
    assert not recipe.section(DeepShareOptions).affine
    assert recipe.needs_teacher and not recipe.needs_plain
    base = plain_network(recipe, "shared")
    assert make_plan(recipe, base, (3, 32, 32)).gates == find_sites(base, (3, 32, 32)).neurons == 122880


def test_networks_with_squares_or_quadratics_have_batchnorm_estimated_alike() -> None:
    study = load_study("fair")
    every = [job for part in study.passes for job in study.jobs_of(part) if job.seed == 0]
    recipes = {job.method: recipe_of(study, job) for job in every}
    options = {name: recipe.section(DeepShareOptions) for name, recipe in recipes.items()}
    squares = {name for name, recipe in recipes.items() if recipe.method.name == "autorep" or options[name].square}
    assert squares >= {"autorep", "autorep-authors", "quadratics", "deepshare-square"}
    for name, recipe in recipes.items():
        batches = 40 if name in squares and not name.endswith("-running") else None
        assert {phase.recalibrate for phase in recipe.result_phases.values()} <= {batches}, name
    for name in ("autorep", "deepshare-square"):
        at = Job(name, "subset", 2288), Job(f"{name}-running", "subset", 2288)
        changed = differences(*(recipe_of(study, job) for job in at))
        assert changed and {key.rpartition(".")[2] for key in changed} == {"recalibrate"}
