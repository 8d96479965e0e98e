"""Finished runs of segmentation on real images, small enough to be trained in a test."""

from pathlib import Path

import pytest
import torch

from deepshare.training.api import fit
from deepshare.training.recipe.files import load_recipe
from tests.data.unpacked import Unpack

SMALL: dict[str, object] = {
    "model.arguments": {"width": 0.25, "aspp_width": 8},
    "data.image_size": [24, 32],
    "data.augmentation.crop": [24, 32],
}
FRAMES = {"train": 16, "val": 4, "test": 12}


def train_scenes(factory: pytest.TempPathFactory, unpack: Unpack) -> tuple[Path, Path, Path]:
    """Train a plain network and a shared one on a few frames of CamVid; gives their folders and that of the data."""
    folder = factory.mktemp("scenes")
    data_dir = few_frames(unpack("camvid-240x180") / "CamVid", folder / "data")
    with torch.random.fork_rng():
        for name in ("plain", "10"):
            recipe = load_recipe(f"camvid-small-{name}")
            once = {f"{phase}.epochs": 1 for phase in recipe.phases}
            fit(recipe=load_recipe(recipe.name, {**SMALL, **once}), out=folder / name, data_dir=data_dir)
    return folder / "plain", folder / "10", data_dir


def few_frames(real: Path, folder: Path) -> Path:
    """Make a copy of CamVid whose lists name a few frames only."""
    target = folder / "CamVid"
    target.mkdir(parents=True)
    for part, count in FRAMES.items():
        for kind in (part, f"{part}annot"):
            (target / kind).symlink_to(real / kind)
        names = sorted(path.name for path in (real / part).iterdir())
        (target / f"{part}.txt").write_text("\n".join(names[:: len(names) // count][:count]))
    return folder
