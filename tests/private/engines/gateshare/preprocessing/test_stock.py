"""Pools that are dealt and moved are on the disk, all of them or nothing, whenever the power fails."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.preprocessing import pool as pools
from deepshare.private.engines.gateshare.preprocessing.marks import FILE
from deepshare.private.engines.gateshare.preprocessing.pool import ABOUT, LOTS, LotPool, write_pools
from deepshare.private.engines.gateshare.preprocessing.stock import move_pool
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate
from tests.disk import Disk

MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(52)
    return translate(nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 3)), (3, 2, 2))


def deal(folder: Path, program: Program) -> Path:
    write_pools(folder, program.outline(), calibrate(program), 3, lambda *_: None)
    return folder / "server"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A folder of another disk."""
    if not MEMORY.is_dir() or MEMORY.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder) / "pools"


def lots(path: Path, program: Program) -> int:
    pool = LotPool(path, "server", program)
    found = len(pool.names())
    pool.close()
    return found


def test_a_pool_is_finished_when_its_lots_are_on_the_disk(
    disk: Disk, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_about, begun = pools.write_about, list[Path]()

    def watched(folder: Path, *arguments: object) -> None:
        assert [path for path in disk.lost(folder / LOTS) if path != folder / LOTS] == []
        begun.append(folder)
        write_about(folder, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pools, "write_about", watched)
    deal(tmp_path, program)
    assert len(begun) == 2
    assert all(path.name.startswith(FILE) for path in disk.lost(tmp_path / "server"))  # which SQLite syncs itself


def test_a_pool_that_is_moved_is_on_the_disk(disk: Disk, program: Program, tmp_path: Path) -> None:
    new = deal(tmp_path / "new", program)
    target = move_pool(new, tmp_path / "pools")
    assert disk.survives(target) and not new.exists()
    assert target == tmp_path / "pools" / "server" and lots(target, program) >= 3


def test_a_pool_is_copied_to_another_disk_before_it_is_none_here(
    disk: Disk, program: Program, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = deal(tmp_path / "new", program)
    unlink, copied = Path.unlink, list[list[Path]]()

    def watched(path: Path, *, missing_ok: bool = False) -> None:
        if path == new / ABOUT:
            copied.append(disk.lost(elsewhere / ".server.incoming"))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", watched)
    target = move_pool(new, elsewhere)
    assert copied == [[]] and disk.lost(target) == []
    assert not new.exists() and lots(target, program) >= 3


def test_a_move_to_another_disk_that_was_cut_short_goes_on(
    program: Program, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = deal(tmp_path / "new", program)
    shutil.copytree(new, elsewhere / ".server.incoming")
    with pytest.raises(EngineError, match=r"another pool is being moved, or delete .*/\.server\.incoming"):
        move_pool(new, elsewhere)
    assert (new / ABOUT).is_file()  # what is over there need not be whole
    shutil.rmtree(elsewhere / ".server.incoming")
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if path.parent == elsewhere:
            raise KeyboardInterrupt
        return rename(path, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            move_pool(new, elsewhere)
    assert not (new / ABOUT).exists()  # of two copies lots would be used twice
    target = move_pool(new, elsewhere)
    assert not new.exists() and lots(target, program) >= 3
    with pytest.raises(EngineError, match="there is no finished pool"):
        move_pool(new, elsewhere)
