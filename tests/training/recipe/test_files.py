"""Recipes as files: what is read, what is refused and in which words, and flags read as the type of their key."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from deepshare.errors import RecipeError
from deepshare.training.recipe.files import changed, differences, load_recipe, names, to_toml


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize("name", names())
def test_what_is_written_is_read_back(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert load_recipe(write(tmp_path, to_toml(recipe), "recipe.toml")) == recipe


def test_the_record_is_the_resolved_recipe() -> None:
    record = tomllib.loads(to_toml(load_recipe("cifar100-resnet18-12.9k", {"gelu.epochs": 2, "plain.epochs": 0})))
    assert "base" not in record
    assert "plain" not in record
    assert record["gelu"]["epochs"] == 2
    assert record["budget"]["gates"] == 12_900
    assert record["teacher"]["milestones"] == [0.3, 0.6, 0.8]


def test_text_is_written_so_that_toml_reads_it(tmp_path: Path) -> None:
    about = 'quotes " and \\ and\n\ttabs, DEL \x7f, Σ and 😀'
    recipe = load_recipe("digits").model_copy(update={"about": about})
    assert load_recipe(write(tmp_path, to_toml(recipe))).about == about


def test_all_problems_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, 'base = "digits"\n[gelu]\nepocs = 3\nlr = "fast"\n[modle]\nname = 1\n')
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert str(caught.value).split(": ", 1)[0] == str(path)
    for problem in ('did you mean "gelu.epochs"?', 'gelu.lr: got "fast", expected number', 'did you mean "model"?'):
        assert problem in str(caught.value)


def test_a_wrong_key_is_named_with_the_file_that_it_is_in(tmp_path: Path) -> None:
    base = write(tmp_path, 'base = "digits"\n[gelu]\nlr = "fast"\nepochs = 3\n', "first.toml")
    child = write(tmp_path, 'base = "first.toml"\n[gelu]\nepochs = 2\n', "second.toml")
    with pytest.raises(RecipeError) as caught:
        load_recipe(child)
    assert str(caught.value) == f'{base}: gelu.lr: got "fast", expected number'
    child.write_text('base = "first.toml"\ngelu.epochs = "two"\n')
    with pytest.raises(RecipeError) as caught:
        load_recipe(child, {"switch.lr": -1.0})
    problems = ('gelu.epochs: got "two", expected integer', "switch.lr: got -1.0, expected greater than 0")
    assert str(caught.value) == f'{child}: {"; ".join(problems)}; {base}: gelu.lr: got "fast", expected number'
    with pytest.raises(RecipeError, match=r"^digits\.toml: gelu\.lr: got"):
        load_recipe("digits", {"gelu.lr": "fast"})


def test_numbers_in_a_file_are_not_made_from_text(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r'gelu\.epochs: got "2", expected integer'):
        load_recipe(write(tmp_path, 'base = "digits"\ngelu.epochs = "2"\n'))


def test_a_flag_for_a_section_that_is_a_value_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"gelu: got 5, expected a section"):
        load_recipe(write(tmp_path, 'base = "digits"\ngelu = 5\n'), {"gelu.epochs": 2})


def test_a_recipe_of_ones_own_beside_its_base(tmp_path: Path) -> None:
    write(tmp_path, 'base = "digits"\nseed = 3\ngelu.epochs = 5\n', "first.toml")
    recipe = load_recipe(write(tmp_path, 'base = "first.toml"\ngelu.lr = 0.5\n', "second.toml"))
    assert (recipe.name, recipe.seed, recipe.phases["gelu"].epochs, recipe.phases["gelu"].lr) == ("second", 3, 5, 0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "mine.toml"', "mine.toml: its base leads back to itself"),
        ('base = "digit"', 'no recipe is called "digit", did you mean "digits"?'),
        ('base = "gone.toml"', "there is no such recipe file"),
        ("base = 1", "mine.toml: base: expected the name of a recipe, got 1"),
        ("gelu = {", "mine.toml: not a TOML file"),
    ],
)
def test_a_base_or_file_that_cannot_be_read(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, text))
    assert message in str(caught.value)
    if message.startswith("mine.toml"):
        assert str(caught.value).startswith(f"{tmp_path}/mine.toml: ")


def test_an_unknown_name_says_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r'no recipe is called "cifar100-smal", did you mean "cifar100-small"\?'):
        load_recipe("cifar100-smal")
    with pytest.raises(RecipeError, match=r"nowhere\.toml: there is no such recipe file"):
        load_recipe("nowhere.toml")


@pytest.mark.parametrize(
    "overrides",
    [
        {"model.classes": "7", "plain.model": {"name": "resnet10", "classes": 7}},
        {"model.num_classes": 7, "plain.model.name": "resnet10", "plain.model.classes": 7},
    ],
)
def test_the_old_name_of_num_classes_is_read_and_the_new_one_written(
    overrides: dict[str, object], tmp_path: Path
) -> None:
    old = tmp_path / "old.toml"
    old.write_text('base = "digits"\n[model]\nclasses = 7\n[plain.model]\nname = "resnet10"\nclasses = 7\n')
    recipe = load_recipe(old)
    assert recipe.model.num_classes == recipe.model_of("plain").num_classes == 7
    assert changed(load_recipe("digits", {"name": "old"}), overrides) == recipe
    assert "\nclasses" not in to_toml(recipe) and to_toml(recipe).count("num_classes = 7") == 2


def test_both_names_of_one_key_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "both.toml"
    file.write_text('base = "digits"\n[model]\nclasses = 7\nnum_classes = 10\n')
    with pytest.raises(RecipeError, match=r"model\.classes: there is no such key"):
        load_recipe(file)


def test_differences_of_two_recipes() -> None:
    old, new = load_recipe("digits"), load_recipe("digits", {"plain": None, "gelu.lr": 0.5})
    changed = differences(old, new)
    assert changed["gelu.lr"] == (0.05, 0.5)
    assert changed["plain.epochs"] == (6, None)
    assert all(key == "plain" or key.startswith(("plain.", "gelu.lr")) for key in changed)


def test_a_start_that_was_written_down_equals_the_same_one_that_was_left_open() -> None:
    for name in ("digits", "digits-plain"):
        assert not differences(
            load_recipe(name, {"method.start": "uniform"}), load_recipe(name, {"method.start": None})
        )
    trained = {"model.weights": "trained.pt", "method.start": None}
    old, new = load_recipe("digits", {**trained, "method.start": "uniform"}), load_recipe("digits", trained)
    assert differences(old, new) == {"method.start": ("uniform", "identity")}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("gelu.epochs", "2", 2),
        ("gelu.lr", "1", 1.0),
        ("gelu.lr", "1e-3", 1e-3),
        ("budget.gates", "10%", "10%"),
        ("budget.gates", "6000", 6000),
        ("budget.layer_sharing", "false", False),
        ("budget.max_group", "2", 2),
        ("budget.max_group", "none", None),
        ("budget.allocate", "counts.json", "counts.json"),
        ("gelu.end_lr", "0", 0.0),
        ("switch.schedule", "none", "none"),
        ("about", "5", "5"),
        ("data.validation", "0.1", 0.1),
        ("data.augmentation.scale", "[0.5, 2]", (0.5, 2.0)),
        ("data.augmentation.scale", (0.5, 2), (0.5, 2.0)),
        ("model.weights", "runs/plain", "runs/plain"),
        ("model.arguments.width", "8", 8),
        ("model.arguments", {"width": 8}, {"width": 8}),
    ],
)
def test_flags_are_read_as_their_type(key: str, value: object, expected: object) -> None:
    found: Any = load_recipe("cifar100-small", {key: value})
    for part in key.split("."):
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"gelu.epoch": 2}, 'gelu.epoch: there is no such key, did you mean "gelu.epochs"?'),
        ({"epochs": 2}, "epochs: there is no such key, did you mean plain.epochs or teacher.epochs or "),
        ({"model.width": 8}, "the network's own arguments are model.arguments.width"),
        ({"gellu.epochs": 2}, 'gellu: there is no such key, did you mean "gelu"?'),
        ({"seed.x": 1}, "seed.x: seed is a value, not a section"),
        ({"gelu.epochs": "two"}, 'digits.toml: gelu.epochs: got "two", expected integer'),
        ({"gelu.epochs": 1.5}, "digits.toml: gelu.epochs: got 1.5, expected integer"),
        ({"gelu.epochs": True}, "digits.toml: gelu.epochs: got true, expected integer"),
        ({"gelu.lr": "-1"}, "digits.toml: gelu.lr: got -1, expected greater than 0"),
        ({"gelu.lr": float("nan")}, "digits.toml: gelu.lr: got NaN, expected a finite number"),
        ({"gelu": 5}, "digits.toml: gelu: got 5, expected a section"),
        ({"gelu.schedule": "lin"}, "got \"lin\", expected 'linear', 'cosine', 'poly', 'steps' or 'none'"),
        ({"data.validation": "x"}, 'digits.toml: data.validation: got "x", expected integer or number'),
        ({"data.validation": 1.5}, "data: validation is a number of training images (1000) or a share of them (0.02)"),
        ({"data.augmentation.hue": 0.7}, "data.augmentation.hue: got 0.7, expected less than or equal to 0.5"),
        ({"data.augmentation.scale": [1]}, "digits.toml: data.augmentation.scale.1: missing"),
        ({"data.augmentation.scale": [2.0, 1.0]}, "scale runs from the smaller to the larger factor"),
        ({"budget.gates": "-1"}, "digits.toml: budget.gates: expected a number of gates above 0"),
        ({"budget.gates": "101%"}, 'budget.gates: expected a number of gates (6000) or a share of the ReLUs ("1.25%")'),
        (
            {"budget.allocate": "snll"},
            'expected "senet", "snl-densities", "snl", "pruning", "sensitivity", "uniform" or',
        ),
        ({"model.num_classes": None}, "digits.toml: model.num_classes: missing"),
        ({"model.arguments.width": [8]}, "digits.toml: model.arguments.width: got [8], expected"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_was_expected(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("digits", overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
