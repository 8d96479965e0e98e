"""Every recipe runs through all its phases, on real images."""

from pathlib import Path

import pytest

from deepshare.training.api import fit
from deepshare.training.recipe.files import Recipe, load_recipe, names
from deepshare.training.reporter import Reporter
from tests.data.unpacked import Unpack

ARCHIVES = {
    "cifar100": "cifar-100-python",
    "tiny-imagenet": "tiny-imagenet-200-subset60",
    "ade20k": "ade20k-val30-150class",
    "camvid": "camvid-240x180",
}
QUICK = (
    "digits",
    "digits-plain",
    "cifar100-small",
    "cifar100-small-plain",
    "cifar100-resnet18-6k-no-replicates",
    "camvid-small-plain",
    "camvid-small-3",
)


class Phases(Reporter):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def begin(self, phase: str, epochs: int, first: int) -> None:
        self.seen.append(phase)


def data_dir(recipe: Recipe, unpack: Unpack, folder: Path) -> Path:
    """Where the real images are. Of ADE20K there are 30 with all classes: here 24 to train with, 6 to test with."""
    if recipe.data.name == "digits":
        return folder
    real = unpack(ARCHIVES[recipe.data.name])
    if recipe.data.name != "ade20k":
        return real
    source, target = real / "ADEChallengeData2016-val30", folder / "ADEChallengeData2016"
    for kind in ("images", "annotations"):
        for number, file in enumerate(sorted((source / kind / "validation").iterdir())):
            part = target / kind / ("training" if number < 24 else "validation")
            part.mkdir(parents=True, exist_ok=True)
            (part / file.name).symlink_to(file)
    (target / "objectInfo150.txt").symlink_to(source / "objectInfo150.txt")
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "ade20k-deeplabv3",
        "ade20k-deeplabv3-2556k",
        pytest.param("ade20k-deeplabv3-spatial-2558k", marks=pytest.mark.slow),
    ],
)
def test_small_dry_run_on_ade20k(name: str, real_data: Unpack, tmp_path: Path) -> None:
    smaller: dict[str, object] = {
        "model.arguments": {"width": 0.25, "aspp_width": 16},
        "data.image_size": 96,
        "data.augmentation.crop": 96,
        "data.validation": 4,
        "data.subset": 8,
    }
    recipe = load_recipe(name)
    smaller |= {f"{phase}.batch": 2 for phase in ("snl", *recipe.phases)}
    if recipe.budget:
        smaller["budget.gates"] = "3%"
    told = Phases()
    where = data_dir(recipe, real_data, tmp_path)
    fit(recipe=load_recipe(name, smaller), out=tmp_path / "run", data_dir=where, dry_run=True, reporter=told)
    by_snl = recipe.budget is not None and recipe.method.name == "deepshare"
    assert set(told.seen) == {*recipe.phases, *(["snl"] if by_snl else [])}


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in names()])
def test_dry_run(name: str, real_data: Unpack, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    smaller: dict[str, object] = {f"{phase}.batch": 2 for phase in recipe.phases}
    if recipe.data.name == "ade20k":
        smaller |= {"data.validation": 4, "snl.batch": 2}
    told = Phases()
    where = data_dir(recipe, real_data, tmp_path)
    fit(recipe=load_recipe(name, smaller), out=tmp_path / "run", data_dir=where, dry_run=True, reporter=told)
    assert [phase for phase in told.seen if phase != "snl"] == list(recipe.phases)
    assert not (tmp_path / "run").exists()
