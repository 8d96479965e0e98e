"""The same test images shown to several runs of segmentation."""

import json
from pathlib import Path
from shutil import copytree

import pytest
import torch
from matplotlib.image import imread
from torch import Tensor

import deepshare
from deepshare.data import Fit, batches
from deepshare.data.palette import coloured
from deepshare.study.scenes.comparison import SceneComparison, compare
from deepshare.study.scenes.figure import draw
from deepshare.training.recipe.files import load_recipe, to_toml
from tests.cli.command import Cli
from tests.data.unpacked import Unpack
from tests.study.scenes.scene_runs import train_scenes

Runs = tuple[Path, Path, Path]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, real_data: Unpack) -> Runs:
    return train_scenes(tmp_path_factory, real_data)


@pytest.fixture(scope="module")
def found(runs: Runs) -> SceneComparison:
    plain, shared, data_dir = runs
    return compare([plain, shared], samples=3, data_dir=data_dir)


def test_every_run_sees_the_same_images_evenly_spaced(found: SceneComparison, runs: Runs) -> None:
    for run in found.runs:
        assert [scene.number for scene in run.scenes] == [2, 6, 10]  # of 12
    test = deepshare.data.load("camvid", runs[2]).test
    shown, labels = next(iter(batches(test.take(torch.tensor([2, 6, 10])), 3, augment=Fit((24, 32)))))
    for run, folder in zip(found.runs, runs[:2], strict=True):
        with torch.no_grad():
            classes = deepshare.load(folder)(shown).argmax(1)
        for scene, right, said in zip(run.scenes, labels, classes, strict=True):
            assert torch.equal(scene.found, said)
            assert torch.equal(scene.truth, right.masked_fill(right == 11, -1))
            known = right != 11
            assert scene.accuracy == pytest.approx(float((said == right)[known].double().mean()))


def test_gates_and_scores_are_those_of_the_runs(found: SceneComparison, runs: Runs) -> None:
    plain, shared = found.runs
    plan = deepshare.Plan.load(runs[1] / "plan.json")
    assert plain.gates == plain.neurons == shared.neurons == plan.neurons
    assert shared.gates == plan.gates == 6_288
    assert plain.gates_said == f"{plan.neurons:,} gates"
    assert f"({shared.gates / shared.neurons:.1%})" in shared.gates_said
    for run, folder in zip(found.runs, runs[:2], strict=True):
        result = json.loads((folder / "result.json").read_text())
        assert run.miou == result["test"]["last"]["miou"]
        assert f"{run.miou:.2%}" in str(found)


def test_the_figure_shows_image_truth_and_predictions(found: SceneComparison) -> None:
    figure = draw(found)
    assert len(figure.axes) == 3 * 4
    pictures = [torch.from_numpy(axes.images[0].get_array()).permute(2, 0, 1) for axes in figure.axes]
    for row in range(3):
        first = found.runs[0].scenes[row]
        black = first.truth < 0
        expected: list[Tensor] = [first.image, coloured(first.truth)]
        expected += [coloured(run.scenes[row].found).masked_fill(black, 0) for run in found.runs]
        assert all(map(torch.equal, pictures[4 * row : 4 * row + 4], expected))
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    occurring = {found.classes[number] for number in first.truth.unique().tolist() if number >= 0}
    assert occurring < set(named)
    assert named[-1] == "no class"


def test_command(cli: Cli, runs: Runs, tmp_path: Path) -> None:
    plain, shared, data_dir = runs
    said = cli("study", "scenes", plain, shared, "--samples", 2, "--data-dir", data_dir, "--out", tmp_path)
    assert said.code == 0
    assert said.out.splitlines()[-1] == f"drawn in {tmp_path}/scenes.svg"
    record = json.loads((tmp_path / "scenes.json").read_text())
    assert [run["run"] for run in record["runs"]] == [str(plain), str(shared)]
    assert record["command"] == f"deepshare study scenes {plain} {shared} --samples 2"
    assert (tmp_path / "scenes.svg").read_text().count("<image ") == 8
    assert imread(tmp_path / "scenes.png").ndim == 3


def test_all_images_where_more_are_asked_for(runs: Runs) -> None:
    plain, _, data_dir = runs
    shown = compare([plain], samples=1000, data_dir=data_dir).runs[0].scenes
    assert [scene.number for scene in shown] == list(range(12))


def test_runs_that_cannot_be_compared_are_refused(cli: Cli, runs: Runs, tiny_run: Path, tmp_path: Path) -> None:
    plain, _, data_dir = runs
    other = Path(copytree(plain, tmp_path / "other"))
    recipe = load_recipe(other / "recipe.toml", {"data.evaluation": "sliding"})
    (other / "recipe.toml").write_text(to_toml(recipe))
    for folders, words in (
        ([tiny_run], "the images of digits have one class each: give runs of segmentation"),
        ([plain, tiny_run], f"{tiny_run} was trained on other images than {plain}"),
        ([plain, other], f"{other} has another data.evaluation than {plain}"),
        ([plain, plain / "nothing"], "nothing"),
    ):
        said = cli("study", "scenes", *folders, "--data-dir", data_dir)
        assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
        assert words in said.err
    assert "samples 0" in cli("study", "scenes", plain, "--samples", 0).err
    assert not (plain / "study").exists()
