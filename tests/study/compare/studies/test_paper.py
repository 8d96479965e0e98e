"""The study at full size: the paper's network, budgets and lengths, and one batch of every phase of every method."""

from pathlib import Path

import pytest

from deepshare.errors import BudgetError
from deepshare.sharing.convert import count_gates
from deepshare.sharing.sites import find_sites
from deepshare.study.compare.runner import kinds
from deepshare.study.compare.study_file import TEACHER, Job, Study, load_study, recipe_of
from deepshare.study.published import paper
from deepshare.training.build import make_method, plain_network
from deepshare.training.recipe.files import load_recipe
from tests.cli.command import Cli
from tests.data.unpacked import Unpack
from tests.study.compare.digits import DIGITS

BUDGETS = (6_000, 12_900, 49_900)
SIZE = (3, 32, 32)
STUDY = load_study("paper")
QUICK = ("deepshare", "deepreduce")


@pytest.fixture(scope="module")
def study() -> Study:
    return STUDY


def test_all_methods_at_the_papers_budgets_and_the_ablations_at_the_least(study: Study) -> None:
    every = {(job.method, job.budget) for job in kinds(study)}
    ablations = {"no-affine", "no-layer-sharing", "no-budget", "no-gelu"}
    named = set(study.methods) - ablations - {"relu"}
    assert every == {("relu", None)} | {(m, b) for m in named for b in BUDGETS} | {(m, 6_000) for m in ablations}
    assert {recipe_of(study, job).method.name for job in kinds(study)} == {
        *("relu", "deepshare", "trimmed", "snl", "autorep", "senet", "deepreduce", "spatial", "hybrenet", "delphi")
    }
    theirs = {entry.ablation for entry in study.methods.values() if entry.ablation}
    assert theirs == {row.method for row in paper.load().ablations.rows}
    small = load_study("small")  # which tries what goes beyond the paper, what few epochs need, and the other start
    beyond = ("DeepShare for few epochs", "DeepShare beyond the paper", "DeepShare with patches")
    tried = {name for part in small.passes if part.about.startswith(beyond) for name in part.methods}
    assert set(small.methods) - tried <= set(study.methods)


@pytest.mark.parametrize(("budget", "name"), [(6_000, "6k"), (12_900, "12.9k"), (49_900, "49.9k")])
def test_deepshare_is_the_papers_recipe_but_for_the_common_teacher(study: Study, budget: int, name: str) -> None:
    ours, theirs = recipe_of(study, Job("deepshare", "full", budget)), load_recipe(f"cifar100-resnet18-{name}")
    for part in ("model", "budget", "method", "gelu", "switch", "finetune"):
        assert getattr(ours, part) == getattr(theirs, part), part
    assert ours.data.model_copy(update={"seed": None}) == theirs.data
    assert find_sites(plain_network(ours, "shared"), SIZE).neurons == 491_520


@pytest.mark.parametrize("part", ["affine", "layer-sharing", "budget", "gelu"])
def test_ablations_are_those_of_the_recipes(study: Study, part: str) -> None:
    ours = recipe_of(study, Job(f"no-{part}", "full", 6_000))
    theirs = load_recipe(f"cifar100-resnet18-6k-no-{part}")
    for section in ("budget", "method", "gelu", "switch", "finetune"):
        assert getattr(ours, section) == getattr(theirs, section), section


@pytest.mark.parametrize(
    ("method", "recipe"),
    [
        ("autorep", "cifar100-resnet18-autorep-6k"),
        ("senet", "cifar100-resnet18-senet-49.6k"),
        ("spatial", "cifar100-resnet18-spatial-50k"),
        ("deepreduce", "cifar100-resnet18-deepreduce-49.2k"),
        ("hybrenet", "cifar100-hrn5x5x3-hybrenet-52k"),
        ("delphi", "cifar100-resnet18-delphi-49.9k"),
    ],
)
def test_rivals_have_their_own_settings_and_shares_of_370_epochs(study: Study, method: str, recipe: str) -> None:
    ours, theirs = recipe_of(study, Job(method, "full", 49_900)), load_recipe(recipe)
    assert ours.method == theirs.method
    if section := ours.method_class.section:
        assert ours.section(section) == theirs.section(section)
    assert ours.distillation.model_copy(update={"teacher": "gelu"}) == theirs.distillation.model_copy(
        update={"teacher": "gelu"}
    )
    phases = {name: getattr(theirs, name) for name in ("search", "finetune") if getattr(theirs, name)}
    total = sum(phase.epochs for phase in phases.values())
    for name, phase in phases.items():
        stretched = getattr(ours, name)
        assert stretched.model_copy(update={"epochs": phase.epochs}) == phase
        assert stretched.epochs == round(370 * phase.epochs / total)


def test_the_teacher_is_the_baseline_without_a_teacher_of_its_own(study: Study) -> None:
    ours, theirs = recipe_of(study, Job(TEACHER, "full")), load_recipe("cifar100-resnet18")
    assert ours.plain is not None and theirs.plain is not None
    assert ours.plain == theirs.plain.model_copy(update={"distill": 0.0})
    assert ours.plain.epochs == 200
    assert not ours.needs_teacher


@pytest.mark.parametrize(
    ("method", "gates"),
    [
        ("deepreduce", (5_888, 12_288, 49_152)),
        ("hybrenet", (5_120, 12_800, 48_000)),
        ("delphi", (None, 8_192, 49_152)),
    ],
)
def test_methods_of_whole_layers_come_near_to_the_budgets(
    study: Study, method: str, gates: tuple[int | None, ...]
) -> None:
    for budget, expected in zip(BUDGETS, gates, strict=True):
        recipe = recipe_of(study, Job(method, "full", budget))
        base = plain_network(recipe, "shared")
        made = make_method(recipe, base, SIZE)
        if expected is None:
            with pytest.raises(BudgetError, match="8,192"):
                made.convert(base)
            continue
        network = made.convert(base)
        made.build_phase_modules(network, "finetune")
        assert count_gates(network.eval(), SIZE) == expected


def of_two_images(folder: Path) -> Path:
    """The study with batches of two images."""
    text = DIGITS.with_name("paper.toml").read_text()
    changes = {"batch = 128": "batch = 2", "plain = { distill = 0.0 }": "plain = { distill = 0.0, batch = 2 }"}
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "paper.toml").write_text(text)
    return folder / "paper.toml"


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in STUDY.methods]
)
def test_dry_run_at_full_size(
    cli: Cli,
    real_data: Unpack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    file, data = of_two_images(tmp_path), real_data("cifar-100-python")
    said = cli("compare", "--study", file, "--dry-run", "--only", method, "--data-dir", data)
    assert said.code == 0, said.err
    expected = {f"{job.name}: every phase runs" for job in kinds(STUDY) if job.method == method}
    impossible = {line for line in said.out.splitlines() if "give at least 8,192" in line}
    assert set(said.out.splitlines()) - impossible == {line for line in expected if "delphi-6000" not in line}
    assert [line.partition(":")[0] for line in impossible] == ["full-delphi-6000-seed0"] * (method == "delphi")
    assert list(tmp_path.iterdir()) == [file]
