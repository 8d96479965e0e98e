"""The benchmark of networks of ImageNet's size, with a small one."""

from pathlib import Path

import pytest

pytest.importorskip("torchvision", reason="torchvision is not installed")

from benchmarks.imagenet import ROLES, line, measure, read


@pytest.mark.parametrize("pooling", ["shared", pytest.param("exact", marks=pytest.mark.slow)])
def test_a_small_network_with_its_pool(pooling: str) -> None:
    row = measure("resnet18", pooling, read(None, 32), "20%")
    assert row.wrong == [] and row.rounds == 22
    # 47,104 ReLUs; the pool has four comparisons in a row: 2 x 64x16x8 and 2 x 64x8x8.
    assert row.comparisons <= 9_420 if pooling == "shared" else row.comparisons == 9_420 + 2 * 64 * (16 * 8 + 8 * 8)
    assert set(row.memory) == set(ROLES) and min(row.memory.values()) > 100e6
    assert f"{row.comparisons:,}" in line(row)


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no pictures: give a folder of JPEG or PNG files with --pictures"):
        read(tmp_path, 32)
