"""A disk that loses what was not synced."""

import os
from pathlib import Path

import pytest


class Disk:
    """Notes what the standard library puts on the disk: contents of files, and names in folders."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._held: dict[tuple[int, int], object] = {}
        patch.setattr(os, "fsync", self._sync)

    def _sync(self, handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").resolve()
        self._held[_inode(path)] = _holds(path)

    def survives(self, path: Path) -> bool:
        """Whether a file or an empty folder would be there, whole and by its name, after a power cut now."""
        names = self._held.get(_inode(path.parent))
        named = isinstance(names, dict) and names.get(path.name) == _inode(path)
        return named and (path.is_dir() or self._held.get(_inode(path)) == _holds(path))

    def lost(self, folder: Path) -> list[Path]:
        """What a power cut now would take from a folder, or the folder itself."""
        return [path for path in (folder, *folder.rglob("*")) if not self.survives(path)]


def _inode(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _holds(path: Path) -> object:
    return {one.name: _inode(one) for one in path.iterdir()} if path.is_dir() else path.read_bytes()
