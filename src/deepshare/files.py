"""Atomic file writes."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes, mode: int | None = None, *, sync: bool = True) -> None:
    """Write to a temporary file in the same folder and rename it, so that no reader sees a partial file.

    A device or a pipe, such as /dev/null, is written to as it is: renaming would put a file in its place.

    Args:
        path: The file.
        content: All of it.
        mode: Permissions; by default those of a new file. Nobody else can read it at any time if they forbid it.
        sync: Whether to sync the folder too, so that the new name survives a power cut.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        path.write_bytes(content)
        return
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask() if mode is None else mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Put the names in a folder, or the content of a file, on the disk."""
    if os.name == "nt":  # Windows opens no folders, and syncs only files that are open for writing
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Put a folder with all files and folders in it on the disk."""
    for path in (*folder.rglob("*"), folder):
        sync_folder(path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
