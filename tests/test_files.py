"""Files and what a power cut leaves of them."""

from pathlib import Path

import pytest

from deepshare.files import sync_folder, sync_tree, write_atomically
from tests.disk import Disk


def test_a_file_is_on_the_disk_when_it_is_written(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, before = tmp_path / "file", list[bool]()
    replace = Path.replace

    def watched(temporary: Path, target: Path) -> Path:
        sync_folder(tmp_path)  # by whatever else is written there
        before.append(disk.survives(temporary))
        return replace(temporary, target)

    monkeypatch.setattr(Path, "replace", watched)
    write_atomically(path, b"first")
    assert disk.lost(path) == [] and before == [True]  # never a name of what is not there
    write_atomically(path, b"second", sync=False)
    assert before == [True, True]
    assert not disk.survives(path)  # the name may still be the first one's
    sync_folder(tmp_path)
    assert disk.survives(path)


def test_a_tree_is_on_the_disk_when_it_is_synced(disk: Disk, tmp_path: Path) -> None:
    for name in ("tree/a/b", "tree/c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"content")
    assert len(disk.lost(tmp_path / "tree")) == 4
    sync_tree(tmp_path / "tree")
    assert disk.lost(tmp_path / "tree") == [tmp_path / "tree"]
    sync_folder(tmp_path)
    assert disk.lost(tmp_path / "tree") == []
