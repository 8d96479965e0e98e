"""The rules among the sections of a recipe."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from deepshare.errors import RecipeError
from deepshare.training.recipe.files import Recipe, load_recipe, to_toml


@pytest.mark.parametrize(("text", "size"), [("[6, 9]", (6, 9)), ("9", 9)])
def test_a_size_is_a_number_or_height_and_width(text: str, size: object, tmp_path: Path) -> None:
    recipe = load_recipe("camvid-small-plain", {"data.image_size": text, "data.augmentation.crop": text})
    assert recipe.data.image_size == recipe.data.augmentation.crop == size
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    assert load_recipe(tmp_path / "recipe.toml").data == recipe.data


@pytest.mark.parametrize("size", ["[6]", "[6, 0]", "0", "wide"])
def test_other_sizes_are_refused(size: str) -> None:
    with pytest.raises(RecipeError, match=r"data\.image_size"):
        load_recipe("camvid-small-plain", {"data.image_size": size})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"switch.epochs": 0}, "[gelu] needs [switch]: the gates would stay soft"),
        ({"gelu.epochs": 0}, "[switch] needs [gelu]: without soft gates there is nothing to switch"),
        ({"teacher.epochs": 0}, "distillation needs [teacher], the GELU network; without it set distillation.weight"),
        ({"gelu.schedule": "none"}, 'gelu: schedule "none" takes no end_lr'),
        ({"switch.schedule": "poly"}, 'switch: schedule "poly" needs end_lr'),
        ({"switch.schedule": "steps"}, 'switch: schedule "steps" needs milestones and factor'),
        ({"switch.factor": 0.1}, 'switch: schedule "none" takes no milestones and factor'),
        ({"budget": None}, 'method "deepshare" needs [budget]'),
        ({"budget.gates": 0}, 'budget.gates = 0 leaves polynomials alone: it is for autorep, delphi, and method "deep'),
        ({"budget.gates": -1}, "expected a number of gates above 0"),
        ({"budget.gates": "0%"}, "expected a number of gates (6000) or a share"),
        ({"method.name": "relu"}, 'method "relu" is the plain network: no [budget], no [gelu], [switch], [finetune]'),
        ({"gelu": None, "switch": None, "finetune": None}, "at least one of [gelu], [switch], [finetune] is needed"),
        ({"method.replicates": False}, "method.replicates = false needs budget.layer_sharing"),
        ({"method.initial": "plain", "plain": None}, 'method.initial = "plain" needs [plain] or model.weights'),
        ({"budget.allocate": "snl", "plain": None}, 'budget.allocate = "snl" starts from a trained network'),
        ({"teacher.distill": 1.0}, "[teacher] learns from the labels alone"),
        ({"data.augmentation.crop": 8}, "crop (out of a large image) and crop_padding (a shift of a small one)"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("digits", overrides)
    assert message in str(caught.value)


def test_phases_run_only_where_something_needs_them() -> None:
    def order(**overrides: object) -> list[str]:
        return list(load_recipe("digits", {key.replace("_", "."): value for key, value in overrides.items()}).phases)

    shared = ["gelu", "switch", "finetune"]
    assert order() == ["teacher", *shared]
    assert order(method_initial="plain") == ["teacher", "plain", *shared]
    assert order(budget_allocate="snl") == ["teacher", "plain", *shared]
    assert order(distillation_weight=0) == shared
    assert order(gelu_distill=0) == shared
    assert order(gelu_distill=0, budget_allocate="snl", plain_distill=1) == ["teacher", "plain", *shared]


def test_a_phase_may_have_its_own_weight_of_distillation() -> None:
    recipe = load_recipe("digits", {"distillation.weight": 0.5, "finetune.distill": 0.25, "budget.allocate": "snl"})
    assert [recipe.distill_weight(phase) for phase in recipe.phases] == [0, 0, 0.5, 0.5, 0.25]


def test_a_recipe_cannot_be_changed_after_it_was_checked() -> None:
    recipe = load_recipe("digits")
    with pytest.raises(ValidationError, match="frozen"):
        recipe.seed = 1  # type: ignore[misc]


def test_a_recipe_can_be_written_in_python() -> None:
    values = load_recipe("digits").model_dump()
    assert Recipe(**values) == load_recipe("digits")


@pytest.mark.parametrize(
    ("overrides", "start"),
    [
        ({}, "uniform"),
        ({"model.weights": "trained.pt"}, "identity"),
        ({"method.initial": "plain"}, "identity"),
        ({"method.initial": "plain", "method.start": "uniform"}, "uniform"),
        ({"method.start": "identity"}, "identity"),
    ],
)
def test_trained_weights_keep_their_meaning_unless_the_recipe_says_otherwise(
    overrides: dict[str, object], start: str
) -> None:
    assert load_recipe("digits", {"method.start": None, **overrides}).resolved == {"method.start": start}
