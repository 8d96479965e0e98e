"""The benchmark of networks of ImageNet's size, with a small one."""

from pathlib import Path

import pytest

pytest.importorskip("torchvision", reason="torchvision is not installed")

from benchmarks.imagenet import ROLES, line, measure, read


@pytest.mark.slow
@pytest.mark.parametrize(("pooling", "comparisons"), [("exact", 33_996), ("avg", 9_420), ("all", 71_680)])
def test_a_small_network_with_its_pool(pooling: str, comparisons: int) -> None:
    """47,104 ReLUs; the pool has four comparisons in a row: 2 x 64x16x8 and 2 x 64x8x8."""
    row = measure("resnet18", pooling, read(None, 32), "20%", "consecutive")
    assert row.wrong == [] and row.rounds == (18 if pooling == "avg" else 22)
    assert row.comparisons == comparisons
    assert set(row.memory) == set(ROLES) and min(row.memory.values()) > 100e6
    assert f"{row.comparisons:,}" in line(row)


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no pictures: give a folder of JPEG or PNG files with --pictures"):
        read(tmp_path, 32)
