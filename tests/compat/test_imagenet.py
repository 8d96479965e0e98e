"""The benchmark of networks of ImageNet's size, with a small one."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torchvision", reason="torchvision is not installed")

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def imagenet(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark, which imports its helpers from its own folder."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module("benchmarks.imagenet")


@pytest.mark.slow
@pytest.mark.parametrize(("pooling", "comparisons"), [("exact", 33_996), ("avg", 9_420), ("all", 71_680)])
def test_a_small_network_with_its_pool(imagenet: ModuleType, pooling: str, comparisons: int) -> None:
    """47,104 ReLUs; the pool has four comparisons in a row: 2 x 64x16x8 and 2 x 64x8x8."""
    row = imagenet.measure("resnet18", pooling, imagenet.read(None, 32), "20%", "consecutive")
    assert row.wrong == [] and row.rounds == (18 if pooling == "avg" else 22)
    assert row.comparisons == comparisons
    assert set(row.memory) == set(imagenet.ROLES) and min(row.memory.values()) > 100e6
    assert f"{row.comparisons:,}" in imagenet.line(row)


def test_a_folder_without_pictures_is_refused(imagenet: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no pictures: give a folder of JPEG or PNG files with --pictures"):
        imagenet.read(tmp_path, 32)
