"""The keys of a recipe: flags read as their type, and problems in plain words."""

from typing import Any

import pytest

from deepshare.errors import RecipeError
from deepshare.training.recipe.files import load_recipe


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
        ({"budget.gates": "0"}, "digits.toml: budget.gates: expected a number of gates above 0"),
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
