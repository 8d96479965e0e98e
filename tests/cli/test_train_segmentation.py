"""`deepshare train` and `deepshare eval` on masks: start from a backbone, judge at the masks' own size."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.command import Cli

SMALL = ["--data.image_size", "[32, 48]", "--data.augmentation.crop", "[32, 48]", "--plain.batch", "2"]


@pytest.fixture
def backbone(tmp_path: Path) -> Path:
    models: Any = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    torch.save(models.mobilenet_v2(weights=None, width_mult=0.5).state_dict(), tmp_path / "mobilenet.pth")
    return tmp_path / "mobilenet.pth"


def test_from_a_backbone_to_a_figure(cli: Cli, backbone: Path, camvid_dir: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    start = ["train", "-r", "camvid-small-plain", "--data-dir", camvid_dir, *SMALL, "--weights", backbone]
    trained = cli(*start, "--out", run, "--plain.epochs", 1)
    assert trained.code == 0, trained.err
    told = [line for line in trained.err.splitlines() if "random" in line]
    assert told == [f"weights from {backbone}; still random: aspp, classifier"]

    fitted, whole, sliding = (
        json.loads(cli("eval", run, "--data-dir", camvid_dir, "--json", *flags).out)
        for flags in ([], ["--evaluation", "whole"], ["--evaluation", "sliding"])
    )
    assert "evaluation" not in fitted
    assert (whole["evaluation"], sliding["evaluation"]) == ("whole", "sliding")
    assert whole["loss"] != fitted["loss"]
    said = cli("eval", run, "--data-dir", camvid_dir, "--evaluation", "sliding").out
    assert f"miou {sliding['miou']:.2%} on 2 images, sliding, loss {sliding['loss']:.4f}" in said

    wide = cli(*start, "--dry-run", "--model.arguments.width", "0.25")
    assert (wide.code, wide.err.count("\n")) == (2, 1)
    assert "holds a MobileNetV2 of another width" in wide.err


def test_an_evaluation_for_masks_is_refused_without_them(cli: Cli) -> None:
    said = cli("train", "-r", "digits", "--dry-run", "--data.evaluation", "whole")
    assert (said.code, said.err) == (
        2,
        'deepshare: digits: evaluation "whole" is for data sets with a mask for each image\n',
    )
