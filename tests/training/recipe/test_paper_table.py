"""Every number that the recipes take from the paper, against the paper's own tables and against a copy of them."""

import re
from pathlib import Path

import pytest
import torch

from deepshare.methods.deepshare import DeepShareOptions
from deepshare.training.build import build
from deepshare.training.pipeline import check_method
from deepshare.training.recipe.files import load_recipe, names

PAPER = Path(__file__).parents[4] / "shared" / "paper" / "deepshare.tex"

# (model, data, phase): epochs, batch, first rate, last rate, schedule, momentum, weight decay
HYPERPARAMETERS = {
    ("ResNet18", "CIFAR-100", "gelu"): (100, 128, 0.05, 5e-4, "linear", 0.9, 1e-3),
    ("ResNet18", "CIFAR-100", "switch"): (150, 128, 1e-3, None, "none", 0.9, 1e-3),
    ("ResNet18", "CIFAR-100", "finetune"): (120, 128, 1e-3, 1e-5, "linear", 0.9, 1e-3),
    ("WRN-22-8", "CIFAR-100", "gelu"): (100, 128, 0.05, 5e-4, "linear", 0.9, 1e-3),
    ("WRN-22-8", "CIFAR-100", "switch"): (150, 128, 1e-3, None, "none", 0.9, 1e-3),
    ("WRN-22-8", "CIFAR-100", "finetune"): (120, 128, 1e-3, 1e-5, "linear", 0.9, 1e-3),
    ("ResNet18", "Tiny-ImageNet", "gelu"): (100, 128, 0.05, 1e-5, "cosine", 0.9, 1e-3),
    ("ResNet18", "Tiny-ImageNet", "switch"): (150, 128, 1e-4, None, "none", 0.9, 1e-3),
    ("ResNet18", "Tiny-ImageNet", "finetune"): (150, 128, 1e-3, 1e-5, "cosine", 0.9, 1e-3),
    ("MobileNetV2", "ADE20K", "gelu"): (190, 8, 0.005, 1e-4, "poly", 0.9, 5e-4),
    ("MobileNetV2", "ADE20K", "switch"): (100, 8, 1e-4, None, "none", 0.9, 5e-4),
    ("MobileNetV2", "ADE20K", "finetune"): (100, 8, 1e-4, 5e-6, "linear", 0.9, 5e-4),
}
NETWORKS = {
    ("ResNet18", "CIFAR-100"): ("resnet18", "cifar100", 100, 32, 1.0),
    ("WRN-22-8", "CIFAR-100"): ("wrn22-8", "cifar100", 100, 32, 1.0),
    ("ResNet18", "Tiny-ImageNet"): ("resnet18", "tiny-imagenet", 200, 64, 1.0),
    ("MobileNetV2", "ADE20K"): ("deeplabv3-mobilenetv2", "ade20k", 150, 512, 4.0),
}
SETUPS = {
    "cifar100-resnet18": ("ResNet18", "CIFAR-100"),
    "cifar100-wrn22-8": ("WRN-22-8", "CIFAR-100"),
    "tiny-imagenet-resnet18": ("ResNet18", "Tiny-ImageNet"),
    "ade20k-deeplabv3": ("MobileNetV2", "ADE20K"),
}
# recipe: table, row, thousands of gates, accuracy or mIoU
RESULTS = {
    "cifar100-resnet18": (1, "Baseline", 491.52, 78.23),
    "cifar100-resnet18-49.9k": (1, "DeepShare (Ours)", 49.9, 77.98),
    "cifar100-resnet18-12.9k": (1, "DeepShare (Ours)", 12.9, 77.29),
    "cifar100-resnet18-6k": (1, "DeepShare (Ours)", 6.0, 76.13),
    "cifar100-wrn22-8": (2, "Baseline", 1359.87, 80.2),
    "cifar100-wrn22-8-150k": (2, "DeepShare (Ours)", 150.0, 79.43),
    "cifar100-wrn22-8-120k": (2, "DeepShare (Ours)", 120.0, 79.37),
    "cifar100-wrn22-8-60k": (2, "DeepShare (Ours)", 60.0, 78.87),
    "tiny-imagenet-resnet18": (3, "Baseline", 1966.08, 65.48),
    "tiny-imagenet-resnet18-190k": (3, "DeepShare (Ours)", 190.0, 65.2),
    "tiny-imagenet-resnet18-55k": (3, "DeepShare (Ours)", 55.0, 64.4),
    "tiny-imagenet-resnet18-30k": (3, "DeepShare (Ours)", 30.0, 62.8),
    "ade20k-deeplabv3": (4, "Baseline", 85262.0, 34.08),
    "ade20k-deeplabv3-2556k": (4, "DeepShare (Ours)", 2556.0, 33.22),
    "cifar100-resnet18-6k-no-affine": (5, "No affine transformation", 6.0, 73.51),
    "cifar100-resnet18-6k-no-layer-sharing": (5, "No layer sharing", 6.0, 73.39),
    "cifar100-resnet18-6k-no-budget": (5, "No Budget", 6.0, 73.31),
    "cifar100-resnet18-6k-no-gelu": (5, "No GELU phase", 6.0, 69.44),
    "cifar100-resnet18-6k-no-replicates": (5, "No Replicates", 6.0, 56.08),
}
# The methods that the paper compares with, on the same network or their own: table, row, and a budget of its gates.
COMPARATORS = {
    "cifar100-resnet18-snl-49.9k": (1, "SNL", 49.9, 73.75),
    "cifar100-resnet18-snl-12.9k": (1, "SNL", 12.9, 66.53),
    "cifar100-resnet18-autorep-50k": (1, "AutoRep", 50.0, 75.48),
    "cifar100-resnet18-autorep-12.9k": (1, "AutoRep", 12.9, 74.92),
    "cifar100-resnet18-autorep-6k": (1, "AutoRep", 6.0, 73.79),
    "cifar100-resnet18-senet-49.6k": (1, "SENet", 49.6, 75.28),
    "cifar100-resnet18-senet-24.6k": (1, "SENet", 24.6, 70.59),
    "cifar100-resnet18-spatial-50k": (1, "Spatial sharing", 50.0, 75.51),
    "cifar100-resnet18-spatial-30k": (1, "Spatial sharing", 30.0, 73.03),
    "cifar100-hrn5x5x3-hybrenet-52k": (1, "HybReNet", 52.0, 77.14),
    "cifar100-hrn5x5x3-hybrenet-26k": (1, "HybReNet", 26.0, 72.65),
    "cifar100-wrn22-8-senet-240k": (2, "SENet", 240.0, 79.3),
    "cifar100-wrn22-8-senet-180k": (2, "SENet", 180.0, 79.02),
    "cifar100-wrn22-8-snl-180k": (2, "SNL", 180.0, 77.65),
    "cifar100-wrn22-8-snl-120k": (2, "SNL", 120.0, 76.35),
    "cifar100-wrn22-8-autorep-150k": (2, "AutoRep", 150.0, 78.38),
    "cifar100-wrn22-8-autorep-120k": (2, "AutoRep", 120.0, 77.56),
    "tiny-imagenet-hrn5x5x3-hybrenet-327k": (3, "HybReNet", 327.0, 64.92),
    "tiny-imagenet-hrn5x5x3-hybrenet-104k": (3, "HybReNet", 104.0, 58.9),
    "tiny-imagenet-hrn5x5x3-hybrenet-52k": (3, "HybReNet", 52.0, 54.46),
    "tiny-imagenet-resnet18-senet-298k": (3, "SENet", 298.0, 64.96),
    "tiny-imagenet-resnet18-senet-142k": (3, "SENet", 142.0, 58.9),
    "tiny-imagenet-resnet18-deepreduce-196.6k": (3, "DeepReduce", 196.6, 57.51),
    "tiny-imagenet-resnet18-snl-198.1k": (3, "SNL", 198.1, 63.39),
    "tiny-imagenet-resnet18-snl-59.1k": (3, "SNL", 59.1, 54.24),
    "tiny-imagenet-resnet18-autorep-190k": (3, "AutoReP", 190.0, 64.32),
    "tiny-imagenet-resnet18-autorep-55k": (3, "AutoRep", 55.0, 63.69),
    "tiny-imagenet-resnet18-autorep-30k": (3, "AutoRep", 30.0, 62.77),
}
SCENES = {"ade20k-deeplabv3-spatial-2558k": (4, "Spatial sharing", 2558.0, 33.23)}
# Not in the paper's tables.
UNLISTED = tuple(
    f"cifar100-resnet18-{name}" for name in ("autorep-0", "deepreduce-49.2k", "delphi-49.9k", "random-12.9k")
)
CAMVID = {"camvid-small-plain", "camvid-small-3", "camvid-small-10"}
OWN = {"own", "own-square", "digits", "digits-plain", "cifar100-small", "cifar100-small-plain"} | CAMVID
SHARED = [name for name in RESULTS if RESULTS[name][1] != "Baseline"]

needs_paper = pytest.mark.skipif(not PAPER.is_file(), reason="the paper is not beside the project")


def setup_of(recipe: str) -> tuple[str, str]:
    return next(setup for start, setup in SETUPS.items() if recipe.startswith(start))


def paper_tables() -> list[list[list[str]]]:
    """Return the cells of every table in the paper, in the order of their numbers."""
    tables = re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", PAPER.read_text(), re.DOTALL)
    return [[cells(row) for row in re.sub(r"\\midrule|\\bottomrule|\\toprule", "", t).split(r"\\")] for t in tables]


def cells(row: str) -> list[str]:
    return [re.sub(r"\\textbf\{([^}]*)\}", r"\1", cell).strip() for cell in row.split("&")]


def number(text: str) -> float:
    factor = re.fullmatch(r"(?:([\d.]+)\\times)?10\^\{(-\d+)\}", text)
    return float(f"{factor[1] or 1}e{factor[2]}") if factor else float(text)


def hyperparameters(row: list[str]) -> tuple[int, int, float, float | None, str, float, float]:
    *_, epochs, batch, rates, schedule, momentum, decay = row
    first, *last = [number(text.strip()) for text in rates.strip("$").split(r"\rightarrow")]
    kind = schedule.lower().removesuffix("lr")
    return (
        int(epochs.removesuffix(" epochs")),
        int(batch),
        first,
        last[0] if last else None,
        kind,
        number(momentum),
        number(decay.strip("$")),
    )


@needs_paper
def test_the_copy_of_the_hyperparameters_is_the_papers_table() -> None:
    phases = {"GELU phase": "gelu", "Switch to ReLU": "switch", "Finetune": "finetune"}
    rows = [row for row in paper_tables()[6] if len(row) == 9 and row[2] in phases]
    assert {(row[0], row[1], phases[row[2]]): hyperparameters(row) for row in rows} == HYPERPARAMETERS


@needs_paper
def test_the_copy_of_the_results_is_the_papers_tables() -> None:
    found = set()
    for index, table in enumerate(paper_tables()[:5], 1):
        for row in table:
            values = [cell for cell in row if re.fullmatch(r"\d+(\.\d+)?", cell)]
            name = next((cell for cell in row if cell.startswith(("Baseline", "DeepShare", "No "))), None)
            if name and index < 5:
                found.add((index, name, float(values[0]), float(values[1])))
            elif name:
                found.add((index, name, 6.0, float(values[0])))
    assert found == set(RESULTS.values())


def test_there_is_one_recipe_for_every_row() -> None:
    assert set(names()) == set(RESULTS) | set(COMPARATORS) | set(SCENES) | set(UNLISTED) | OWN


@needs_paper
def test_the_copy_of_the_comparators_is_the_papers_table() -> None:
    methods = {row for _, row, _, _ in COMPARATORS.values()}
    found = set()
    for number, table in enumerate(paper_tables()[:3], 1):
        rows = [[cell for cell in row if cell] for row in table]
        found |= {
            (number, row[-4], float(row[-3]), float(row[-2])) for row in rows if row[-4:-3] and row[-4] in methods
        }
    assert found == set(COMPARATORS.values())


@pytest.mark.parametrize("name", COMPARATORS)
def test_a_comparator_says_its_row_and_has_its_budget(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.paper is not None
    assert recipe.budget is not None
    found = (recipe.paper.table, recipe.paper.row, recipe.paper.gates_k, recipe.paper.accuracy)
    assert found == COMPARATORS[name]
    exact = {"tiny-imagenet-resnet18-deepreduce-196.6k": 196_608}  # whole layers
    assert recipe.budget.gates == exact.get(name, round(1000 * recipe.paper.gates_k))
    assert recipe.method.name == name.split("-")[-2]


def test_the_rival_on_scenes_has_three_percent_of_the_gates_and_the_same_images() -> None:
    (name,) = SCENES
    recipe, other = load_recipe(name), load_recipe("ade20k-deeplabv3-2556k")
    assert recipe.budget is not None
    assert recipe.budget.gates == int(0.03 * 85_262_336)
    assert (recipe.data, recipe.model) == (other.data, other.model)
    assert recipe.method.name == "spatial"


@pytest.mark.parametrize("name", UNLISTED)
def test_a_comparator_that_the_paper_does_not_list_names_no_row(name: str) -> None:
    assert load_recipe(name).paper is None


@pytest.mark.parametrize("name", [*COMPARATORS, *UNLISTED])
def test_images_are_the_same_for_all_methods(name: str) -> None:
    same = "tiny-imagenet-resnet18-30k" if name.startswith("tiny") else "cifar100-resnet18-6k"
    assert load_recipe(name).data == load_recipe(same).data


@pytest.mark.parametrize("name", [*COMPARATORS, *UNLISTED])
def test_a_comparator_fits_its_network_and_budget(name: str) -> None:
    recipe = load_recipe(name)
    size = 64 if name.startswith("tiny") else 32
    with torch.device("cpu" if recipe.method.name == "senet" else "meta"):  # senet draws its gates
        network = build(recipe.model)
    check_method(recipe, network, (3, size, size))


@pytest.mark.parametrize("name", [*RESULTS, *SCENES])
def test_a_recipe_says_which_row_it_is_for(name: str) -> None:
    paper = load_recipe(name).paper
    assert paper is not None
    assert (paper.table, paper.row, paper.gates_k, paper.accuracy or paper.miou) == {**RESULTS, **SCENES}[name]
    assert (paper.miou is not None) == name.startswith("ade20k")


@pytest.mark.parametrize("name", RESULTS)
def test_network_data_and_sharpness(name: str) -> None:
    recipe = load_recipe(name)
    model, data, classes, size, sharpness = NETWORKS[setup_of(name)]
    assert (recipe.model.name, recipe.model.num_classes, recipe.model.arguments) == (model, classes, {})
    assert (recipe.data.name, recipe.data.image_size, recipe.data.subset) == (data, size, None)
    if name in SHARED:
        assert recipe.section(DeepShareOptions).sharpness == sharpness


@pytest.mark.parametrize("name", [name for name in SHARED if not name.endswith("no-gelu")])
@pytest.mark.parametrize("phase", ["gelu", "switch", "finetune"])
def test_every_number_of_the_hyperparameter_table(name: str, phase: str) -> None:
    p = load_recipe(name).phases[phase]
    found = (p.epochs, p.batch, p.lr, p.end_lr, p.schedule, p.momentum, p.weight_decay)
    assert found == HYPERPARAMETERS[*setup_of(name), phase]


def test_without_the_gelu_phase_the_epochs_stay_the_same() -> None:
    full, without = (load_recipe(f"cifar100-resnet18-6k{end}") for end in ("", "-no-gelu"))
    assert set(without.phases) == {"teacher", "finetune"}
    assert without.phases["finetune"].epochs == sum(full.phases[p].epochs for p in ("gelu", "switch", "finetune"))


@pytest.mark.parametrize("name", SHARED)
def test_budgets_are_the_rows_gates(name: str) -> None:
    budget = load_recipe(name).budget
    assert budget is not None
    assert isinstance(budget.gates, int)
    assert budget.gates == (2_555_904 if name.startswith("ade20k") else RESULTS[name][2] * 1000)


@pytest.mark.parametrize("name", RESULTS)
def test_distillation_is_at_temperature_4_and_never_for_segmentation(name: str) -> None:
    recipe = load_recipe(name)
    shared = [phase for phase in ("gelu", "switch", "finetune") if phase in recipe.phases]
    if name.startswith("ade20k"):
        assert not recipe.needs_teacher
        assert all(recipe.distill_weight(phase) == 0 for phase in recipe.phases)
    else:
        assert recipe.distillation.temperature == 4
        assert all(recipe.distill_weight(phase) == 1 for phase in shared)


@pytest.mark.parametrize("name", RESULTS)
def test_crop_flip_and_colour_jitter_everywhere(name: str) -> None:
    augmentation = load_recipe(name).data.augmentation
    assert augmentation.flip
    assert augmentation.jitter > 0
    assert augmentation.crop == 512 if name.startswith("ade20k") else augmentation.crop_padding == 4


@pytest.mark.parametrize(
    ("ablation", "changed"),
    [
        ("no-affine", {"method.affine"}),
        ("no-layer-sharing", {"budget.layer_sharing"}),
        ("no-budget", {"budget.allocate"}),
        ("no-replicates", {"budget.layer_sharing", "method.replicates", "method.affine"}),
    ],
)
def test_an_ablation_changes_one_thing(ablation: str, changed: set[str]) -> None:
    full, other = (load_recipe(f"cifar100-resnet18-6k{end}").model_dump() for end in ("", f"-{ablation}"))
    differences = {
        f"{section}.{key}"
        for section in full
        if isinstance(full[section], dict) and section != "paper"
        for key in full[section]
        if full[section][key] != other[section][key]
    }
    assert differences == changed
