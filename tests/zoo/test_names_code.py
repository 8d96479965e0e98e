"""Networks of the user's own code, by PACKAGE.MODULE:FACTORY."""

from pathlib import Path

import pytest
from torch import nn

from deepshare import fit, zoo
from deepshare.errors import ModelNameError, RecipeError
from deepshare.training.recipe.files import load_recipe

SOURCE = """
from torch import nn

class Small(nn.Sequential):
    input_size = (3, 8, 8)

    def __init__(self, num_classes=4, width=2, channels=3):
        super().__init__(nn.Conv2d(channels, width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36 * width, num_classes))

def plain():
    return Small()

def nothing():
    return 3

def damaged():
    network = Small()
    network[0].weight.data[0] = float("nan")
    return network

def fixed(outputs=3):
    return Small(outputs, channels=1)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mynetworks.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])


def test_a_class_and_a_function_build_networks() -> None:
    model = zoo.build("mynetworks:Small", num_classes=7, width=3)
    assert isinstance(model, nn.Sequential) and model[3].out_features == 7
    assert isinstance(zoo.build("mynetworks:plain", num_classes=4), nn.Module)
    assert zoo.default_input_size("mynetworks:Small") == (3, 8, 8)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mynetworks:plain", "give --input-size"),
        ("mynetworks:missing", "has no function or class missing"),
        ("no.such.module:x", "neither of a library"),
        ("nomodule:x", "No module named 'nomodule'.*run in the folder of the module, or install it"),
        (":x", "neither of a library"),
        ("timm:resnet10t.nonsense", "timm:resnet10t has no tag nonsense: take one of c3_in1k, or none"),
        ("tim:resnet18", 'did you mean "timm"'),
    ],
)
def test_what_cannot_be_found_is_said(name: str, said: str) -> None:
    with pytest.raises(ModelNameError, match=said):
        zoo.default_input_size(name)


def test_something_else_is_refused() -> None:
    with pytest.raises(ModelNameError, match="returns a int, not a torch module"):
        zoo.build("mynetworks:nothing")


def test_weights_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ModelNameError, match=r"returns a network whose 0\.weight holds numbers that are not finite"):
        zoo.build("mynetworks:damaged")


def test_classes_that_a_factory_does_not_take_are_refused_with_its_arguments(tmp_path: Path) -> None:
    recipe = load_recipe("digits", {"model.name": "mynetworks:fixed", "data.image_size": 8, "model.arguments": {}})
    with pytest.raises(RecipeError, match=r"no argument num_classes, .* --model.arguments.NAME \(outputs\)"):
        fit(recipe=recipe, out=tmp_path / "run", dry_run=True, progress=False)
