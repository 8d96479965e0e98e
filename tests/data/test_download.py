import hashlib
import io
import multiprocessing
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deepshare.data import cifar, download, load
from deepshare.data.download import Archive, fetch, obtain
from deepshare.errors import DataError
from tests.data.server import Server, serving

CONTENT = bytes(range(256)) * 20_000  # 5 MB, several chunks


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(CONTENT) as running:
        yield running


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_a_file_arrives_whole_under_its_name_alone(server: Server, tmp_path: Path) -> None:
    path = fetch(server.url("file"), tmp_path / "file", md5(CONTENT))
    assert path.read_bytes() == CONTENT
    assert names(tmp_path) == ["file"]
    assert server.asked == [None]


def test_a_broken_connection_is_taken_up_where_it_broke(server: Server, tmp_path: Path) -> None:
    server.cuts = [1_000_003, 70_000]
    path = fetch(server.url("file"), tmp_path / "file", md5(CONTENT))
    assert path.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=1000003-", "bytes=1070003-"]


def test_a_later_call_goes_on_as_well(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:4_000_000])
    assert fetch(server.url("file"), tmp_path / "file", md5(CONTENT)).read_bytes() == CONTENT
    assert server.asked == ["bytes=4000000-"]
    assert names(tmp_path) == ["file"]


def test_a_part_that_is_whole_already_needs_no_more_bytes(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT)
    assert fetch(server.url("file"), tmp_path / "file", md5(CONTENT)).read_bytes() == CONTENT


def test_a_server_that_ignores_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    server.cuts = [3_000_000]
    assert fetch(server.url("file"), tmp_path / "file", md5(CONTENT)).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=3000000-"]


def test_a_server_that_says_no_length_is_believed_by_checksum(server: Server, tmp_path: Path) -> None:
    server.lengths = False
    assert fetch(server.url("file"), tmp_path / "file", md5(CONTENT)).read_bytes() == CONTENT
    server.cuts = [1000]
    with pytest.raises(DataError, match=f"gave a file with md5 {md5(CONTENT[:1000])}, not {md5(CONTENT)}"):
        fetch(server.url("file"), tmp_path / "other", md5(CONTENT))


@pytest.mark.parametrize("part", [b"", b"remains of another file", CONTENT + b"too long"])
def test_wrong_bytes_never_get_the_name(server: Server, tmp_path: Path, part: bytes) -> None:
    server.content = CONTENT[:-1] + b"!"
    if part:
        (tmp_path / "file.part").write_bytes(part)
    with pytest.raises(DataError, match=r"gave a file with md5 \w+, not \w+: it was removed"):
        fetch(server.url("file"), tmp_path / "file", md5(CONTENT))
    assert names(tmp_path) == []


def test_a_connection_that_brings_nothing_is_given_up(server: Server, tmp_path: Path) -> None:
    server.cuts = [1000] + [0] * 50
    with pytest.raises(DataError, match=r"cannot fetch http.*closed after 1000 of 5120000 bytes.*put it at .*file$"):
        fetch(server.url("file"), tmp_path / "file", md5(CONTENT))
    assert len(server.asked) == 1 + download.ATTEMPTS
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:1000]


def test_a_server_that_refuses_is_asked_once(server: Server, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(DataError, match=r"cannot fetch .*\(HTTP 404 Not Found\): check the network"):
        fetch(server.url("file"), tmp_path / "file", md5(CONTENT))
    assert len(server.asked) == 1


def test_without_network_the_error_says_what_to_put_where(tmp_path: Path) -> None:
    with serving(b"") as gone:
        url = gone.url("cifar.tar.gz")
    with pytest.raises(
        DataError, match=r"cannot fetch http.*Connection refused.*elsewhere and put it at .*cifar\.tar\.gz$"
    ):
        obtain(Archive("cifar", url, "0" * 32), tmp_path, ["train"], download=True)


def pack_tar(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        packed.add(folder, folder.name)
    return buffer.getvalue()


def pack_zip(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return buffer.getvalue()


def test_cifar100_from_nothing(
    cifar100_dir: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = pack_tar(cifar100_dir / "cifar-100-python")
    target = tmp_path_factory.mktemp("data") / "not" / "yet"
    with serving(content) as server:
        server.cuts = [len(content) // 2]
        archive = replace(cifar.CIFAR100.archive, url=server.url("cifar-100-python.tar.gz"), md5=md5(content))
        monkeypatch.setattr("deepshare.data.catalog.CIFAR100", replace(cifar.CIFAR100, archive=archive))
        assert len(load("cifar100", target, download=True).test) == 100
        assert names(target) == ["cifar-100-python"]
        asked = len(server.asked)
        assert len(load("cifar100", target, download=True).test) == 100
        assert len(server.asked) == asked == 2


def test_zip_archives(tmp_path: Path) -> None:
    content = pack_zip({"set/inner/file": b"1", "set/list": b"2"})
    with serving(content) as server:
        folder = obtain(Archive("set", server.url("set.zip"), md5(content)), tmp_path, ["list"], download=True)
    assert (folder / "inner" / "file").read_bytes() == b"1"
    assert names(tmp_path) == ["set"]


def obtain_set(archive: Archive, folder: Path) -> Path:
    return obtain(archive, folder, ["list"], download=True)


def test_processes_that_fetch_at_once_ask_once(tmp_path: Path) -> None:
    content = pack_zip({"set/list": CONTENT})
    context = multiprocessing.get_context("spawn")
    both = context.Barrier(2)  # neither begins before the other is there
    with serving(content) as server, context.Pool(2, both.wait) as pool:
        server.pause = 0.5
        archive = Archive("set", server.url("set.zip"), md5(content))
        assert pool.starmap(obtain_set, [(archive, tmp_path)] * 2, chunksize=1) == [tmp_path / "set"] * 2
    assert server.asked == [None]
    assert (tmp_path / "set" / "list").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_an_archive_put_there_by_hand_is_used_without_network(tmp_path: Path) -> None:
    content = pack_zip({"set/list": b"2"})
    (tmp_path / "set.zip").write_bytes(content)
    archive = Archive("set", "http://127.0.0.1:9/set.zip", md5(content))
    assert obtain(archive, tmp_path, ["list"], download=True) == tmp_path / "set"


def test_a_wrong_archive_put_there_by_hand_is_refused_but_kept(tmp_path: Path) -> None:
    (tmp_path / "set.zip").write_bytes(b"something else")
    with pytest.raises(DataError, match=r"set\.zip has md5 \w+, not 123: remove it"):
        obtain(Archive("set", "http://127.0.0.1:9/set.zip", "123"), tmp_path, ["list"], download=True)
    assert (tmp_path / "set.zip").read_bytes() == b"something else"


def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        member = tarfile.TarInfo("../../escaped")
        member.size = 1
        packed.addfile(member, io.BytesIO(b"x"))
    target = tmp_path / "a" / "b"
    with serving(buffer.getvalue()) as server:
        archive = Archive("set", server.url("set.tar.gz"), md5(buffer.getvalue()))
        with pytest.raises(DataError, match="cannot be unpacked"):
            obtain(archive, target, ["list"], download=True)
    assert not list(tmp_path.rglob("escaped"))
    assert names(target) == ["set.tar.gz"]


@pytest.mark.parametrize("content", [b"no archive at all", pack_zip({"other/list": b""})])
def test_an_archive_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    with serving(content) as server:
        archive = Archive("set", server.url("set.zip"), md5(content))
        with pytest.raises(DataError, match=r"set\.zip (cannot be unpacked|holds no folder set)"):
            obtain(archive, tmp_path, ["list"], download=True)
    assert names(tmp_path) == ["set.zip"]


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(DataError, match=r"cannot write to .*file"):
        obtain(Archive("set", "http://127.0.0.1:9/set.zip", ""), tmp_path / "file", ["list"], download=True)


def test_a_disk_that_fills_up_is_named(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(download, "_copy", full)
    with pytest.raises(DataError, match=r"cannot write to .*: No space left on device"):
        obtain(Archive("set", server.url("set.zip"), ""), tmp_path, ["list"], download=True)
