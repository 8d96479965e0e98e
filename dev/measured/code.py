"""The code that a measurement is about: its fingerprint, now or at a commit, and whether the history has a commit."""

import ast
import hashlib
import io
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath


def fingerprint(root: Path, paths: Sequence[str], commit: str | None = None) -> str:
    """Return a checksum of Python files and folders of them, without docstrings and lines of comment."""
    files = _committed(root, paths, commit) if commit else _present(root, paths)
    found = hashlib.sha256()
    for path in paths:
        inside = (file for file in files if file == PurePosixPath(path) or PurePosixPath(path) in file.parents)
        for file in sorted(inside):
            found.update(f"{file}\n{_bare(files[file])}\n".encode())
    return found.hexdigest()


def in_history(root: Path, commit: str) -> bool:
    """Tell whether a commit led to this one. No commit is missed where the history is not all there, or no git is."""
    if not is_whole(root):
        return True
    return _run(root, "merge-base", "--is-ancestor", commit, "HEAD").returncode == 0


def is_whole(root: Path) -> bool:
    """Tell whether this is a repository with its whole history."""
    return _run(root, "rev-parse", "--is-shallow-repository").stdout.strip() == b"false"


def git(root: Path, *words: str) -> str:
    """Return what git says."""
    done = _run(root, *words)
    done.check_returncode()
    return done.stdout.decode().strip()


def _run(root: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *words], cwd=root, capture_output=True)


def _present(root: Path, paths: Sequence[str]) -> dict[PurePosixPath, str]:
    places = [root / path for path in paths]
    files = [file for place in places for file in ([place] if place.is_file() else place.rglob("*.py"))]
    return {PurePosixPath(file.relative_to(root).as_posix()): file.read_text(encoding="utf-8") for file in files}


def _committed(root: Path, paths: Sequence[str], commit: str) -> dict[PurePosixPath, str]:
    packed = _run(root, "archive", "--format=tar", commit, "--", *paths)
    packed.check_returncode()
    found = {}
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        for member in archive:
            if member.name.endswith(".py") and (file := archive.extractfile(member)) is not None:
                found[PurePosixPath(member.name)] = file.read().decode()
    return found


@lru_cache(maxsize=1024)
def _bare(text: str) -> str:
    return "\n".join(_code(text))


def _code(text: str) -> Iterator[str]:
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    for number, line in enumerate(text.splitlines(), 1):
        if number not in docstrings and line.strip() and not line.lstrip().startswith("#"):
            yield line
