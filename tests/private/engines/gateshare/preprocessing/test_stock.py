"""Pools that are dealt and moved are on the disk, all of them or nothing, whenever the power fails."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from torch import nn

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.fixedpoint import calibrate
from deepshare.private.engines.gateshare.preprocessing import pool as pools
from deepshare.private.engines.gateshare.preprocessing.marks import FILE
from deepshare.private.engines.gateshare.preprocessing.pool import ABOUT, LOTS, LotPool, check_party, write_pools
from deepshare.private.engines.gateshare.preprocessing.stock import MOVING, move_pool
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
            copied.extend(disk.lost(hidden) for hidden in elsewhere.glob(".*.incoming"))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", watched)
    target = move_pool(new, elsewhere)
    assert copied == [[]] and disk.lost(target) == []
    assert not new.exists() and lots(target, program) >= 3


def cut(patch: pytest.MonkeyPatch, owner: object, name: str, when: Callable[[Path], bool]) -> None:
    """Kill a move at a call of a function, halfway where it is a copy."""
    whole = getattr(owner, name)

    def killed(path: Path, *arguments: Any, **options: Any) -> Any:
        if not when(Path(path)):
            return whole(path, *arguments, **options)
        if name == "copytree":
            whole(path / LOTS, arguments[0] / LOTS)
        raise KeyboardInterrupt

    patch.setattr(owner, name, killed)


@pytest.mark.parametrize(
    ("owner", "name", "what"),
    [(shutil, "copytree", "server"), (Path, "unlink", ABOUT), (Path, "rename", ""), (shutil, "rmtree", "server")],
    ids=["copy", "before it is none here", "before it is one there", "deletion"],
)
def test_a_move_to_another_disk_that_was_cut_short_goes_on(
    program: Program, tmp_path: Path, elsewhere: Path, owner: object, name: str, what: str
) -> None:
    new = deal(tmp_path / "new", program)
    whole = lots(new, program)
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:
            cut(patch, owner, name, lambda path: path.parent == elsewhere if not what else path.name == what)
            with pytest.raises(KeyboardInterrupt):
                move_pool(new, elsewhere)
        # Of two copies lots would be used twice.
        assert (new / ABOUT).is_file() + len(list(elsewhere.glob(f"[!.]*/{ABOUT}"))) <= 1
    if not (new / ABOUT).is_file():
        with pytest.raises(EngineError, match="was being moved to another folder: give that one"):
            move_pool(new, tmp_path / "other")
    target = move_pool(new, elsewhere)
    assert not new.exists() and lots(target, program) == whole
    assert [path.name for path in elsewhere.iterdir()] == ["server"] and not (target / MOVING).exists()
    with pytest.raises(EngineError, match="there is no finished pool"):
        move_pool(new, elsewhere)


def test_a_move_that_was_cut_short_has_no_part_in_that_of_another_pool(
    program: Program, tmp_path: Path, elsewhere: Path
) -> None:
    """Not even of the same name, finished or still being dealt."""
    first, second, unfinished = (deal(tmp_path / name, program) for name in ("first", "second", "unfinished"))
    (unfinished / ABOUT).unlink()
    with pytest.MonkeyPatch.context() as patch:
        cut(patch, Path, "rename", lambda path: path.parent == elsewhere)
        with pytest.raises(KeyboardInterrupt):
            move_pool(first, elsewhere)
    with pytest.raises(EngineError, match="there is no finished pool"):
        move_pool(unfinished, elsewhere)
    assert any((unfinished / LOTS).iterdir())
    wanted = [
        check_party(second, "server")["session"],
        json.loads(next(elsewhere.glob(f".*/{ABOUT}")).read_text())["session"],
    ]
    targets = [move_pool(second, elsewhere), move_pool(first, elsewhere)]
    assert [check_party(target, "server")["session"] for target in targets] == wanted


def test_a_pool_is_moved_by_one_at_a_time(program: Program, tmp_path: Path, elsewhere: Path) -> None:
    new = deal(tmp_path / "new", program)
    with FileLock(new / ".moving.lock"), pytest.raises(EngineError, match="is being moved already: let that end"):
        move_pool(new, elsewhere)
    assert lots(move_pool(new, elsewhere), program) >= 3
