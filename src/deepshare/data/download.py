"""Downloads from official addresses: resumable, checked by checksum, unpacked atomically."""

import hashlib
import http.client
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TimeRemainingColumn, TransferSpeedColumn

from deepshare.errors import DataError

CHUNK = 1 << 20
ATTEMPTS = 5
TIMEOUT = 30.0


@dataclass(frozen=True)
class Archive:
    """A published archive of one folder.

    Attributes:
        folder: The folder inside.
        url: Official address.
        md5: MD5 of the published archive.
    """

    folder: str
    url: str
    md5: str

    @property
    def file(self) -> str:
        """File name of the archive."""
        return self.url.rsplit("/", 1)[-1]


def find_folder(data_dir: Path, name: str, needed: Sequence[str]) -> Path | None:
    """Return the folder of this name inside `data_dir`, `data_dir` itself if it has this name, or None.

    Args:
        data_dir: Where to look.
        name: Name of the folder.
        needed: Paths that must exist inside it.
    """
    for folder in (data_dir / name, data_dir):
        missing = [inner for inner in needed if not (folder / inner).exists()]
        if not missing:
            return folder
        if folder.name == name and folder.is_dir():
            raise DataError(f"{folder} lacks {', '.join(missing)}: remove the folder and fetch it again")
    return None


def obtain(archive: Archive, data_dir: Path, needed: Sequence[str], download: bool) -> Path:
    """Return the folder of an archive; download it if it is missing and `download` is set."""
    folder = find_folder(data_dir, archive.folder, needed)
    if folder is None and not download:
        raise DataError(
            f"no {archive.folder} in {data_dir}: put that folder there (it is in {archive.url}), "
            "point --data-dir at it, or allow the download (--download)"
        )
    return folder or _fetch_folder(archive, data_dir, needed)


def _fetch_folder(archive: Archive, data_dir: Path, needed: Sequence[str]) -> Path:
    """Download in one process; the others wait and then find the folder."""
    lock = data_dir / f".{archive.file}.lock"
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):
            folder = find_folder(data_dir, archive.folder, needed)
            if folder is None:
                file = fetch(archive.url, data_dir / archive.file, archive.md5)
                folder = _unpack(file, archive, data_dir)
                file.unlink()
        lock.unlink(missing_ok=True)  # kept after a failure; once the folder exists, nobody needs the lock
    except OSError as error:
        raise DataError(f"cannot write to {data_dir}: {error.strerror or error}") from error
    return folder


def fetch(url: str, path: Path, md5: str) -> Path:
    """Download a file, resuming an earlier attempt; rename it only if its checksum is right."""
    if path.exists():
        if (found := _md5(path)) != md5:
            raise DataError(f"{path} has md5 {found}, not {md5}: remove it, or put the file of {url} there")
        return path
    part = path.with_name(path.name + ".part")
    _receive(url, part)
    if (found := _md5(part)) != md5:
        part.unlink()
        raise DataError(f"{url} gave a file with md5 {found}, not {md5}: it was removed; try again later")
    return part.replace(path)


def _receive(url: str, part: Path) -> None:
    """Append to the part file until it is complete; reconnect as long as bytes arrive."""
    console = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress("[bold]{task.description}", *columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(part.stem, total=None)
        failures = 0
        while True:
            before = _size(part)
            reason = _receive_once(url, part, bar, task)
            if not reason:
                return
            failures = 0 if _size(part) > before else failures + 1
            if failures == ATTEMPTS or reason.startswith("HTTP"):
                raise DataError(
                    f"cannot fetch {url} ({reason}): check the network and try again (it resumes), "
                    f"or fetch it elsewhere and put it at {part.with_suffix('')}"
                )


def _receive_once(url: str, part: Path, bar: Progress, task: TaskID) -> str:
    """Receive from one connection; return the reason if it ended early, None if the file is complete."""
    request = urllib.request.Request(url)
    if have := _size(part):
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            # The file is complete, or longer than the original, which the checksum will detect.
            return ""
        return f"HTTP {error.code} {error.reason}"
    except OSError as error:
        return str(getattr(error, "reason", error))
    except http.client.HTTPException as error:
        return f"{type(error).__name__} {error}"
    with closing(response):
        # A server that ignores the range answers 200 and sends the file from the start.
        have = have if response.status == http.HTTPStatus.PARTIAL_CONTENT else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        bar.update(task, completed=have, total=total)
        return _copy(response, part, have, total, bar, task)


def _copy(
    response: http.client.HTTPResponse, part: Path, have: int, total: int | None, bar: Progress, task: TaskID
) -> str:
    with part.open("ab") as file:
        file.truncate(have)
        while True:
            try:
                chunk = response.read1(CHUNK)
            except (OSError, http.client.HTTPException) as error:
                return f"connection lost: {error}"
            if not chunk:
                break
            file.write(chunk)
            have += len(chunk)
            bar.update(task, completed=have)
    return "" if total is None or have == total else f"connection closed after {have} of {total} bytes"


def _unpack(file: Path, archive: Archive, data_dir: Path) -> Path:
    """Unpack to a temporary folder and rename it, so that the final folder is always complete."""
    with tempfile.TemporaryDirectory(dir=data_dir, prefix=f".{archive.folder}.") as temporary:
        try:
            if zipfile.is_zipfile(file):
                with zipfile.ZipFile(file) as packed:
                    packed.extractall(temporary)
            else:
                with tarfile.open(file) as packed_tar:
                    packed_tar.extractall(temporary, filter="data")
        except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
            raise DataError(f"{file} cannot be unpacked ({error}): remove it and fetch it again") from error
        inner = Path(temporary) / archive.folder
        if not inner.is_dir():
            raise DataError(f"{file} holds no folder {archive.folder}: remove it and fetch {archive.url}")
        return Path(shutil.move(inner, data_dir / archive.folder))


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
