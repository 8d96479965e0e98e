import socket
import ssl
import threading
from pathlib import Path

import pytest

from deepshare.errors import EngineError
from deepshare.private.remote.tls import make_keys
from deepshare.private.transport.tls import tls_of


def shake_hands(server: Path, client: Path, name: str = "localhost") -> str:
    """One real TLS connection; what the client's side says of it."""
    listener = socket.create_server(("127.0.0.1", 0))
    said: list[str] = []

    def answer() -> None:
        try:
            with tls_of(server).server_context().wrap_socket(listener.accept()[0], server_side=True) as end:
                end.sendall(b"welcome")
        except ssl.SSLError as error:
            said.append(str(error.reason))

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with (
            socket.create_connection(listener.getsockname(), 5) as plain,
            tls_of(client).client_context().wrap_socket(plain, server_hostname=name) as end,
        ):
            answered = end.recv(16).decode()
            session = end.session
            if session is None or session.has_ticket:
                answered += " with a ticket"
    except (ssl.SSLError, ConnectionError) as error:
        answered = str(getattr(error, "reason", error))
    thread.join()
    listener.close()
    return " ".join([answered, *said])


def test_both_sides_check_the_other(tmp_path: Path) -> None:
    make_keys(tmp_path / "a", ["localhost", "127.0.0.1"])
    make_keys(tmp_path / "b", ["localhost"])
    assert shake_hands(tmp_path / "a/server", tmp_path / "a/client") == "welcome"
    assert shake_hands(tmp_path / "a/server", tmp_path / "a/client", "127.0.0.1") == "welcome"
    assert "welcome" not in shake_hands(tmp_path / "a/server", tmp_path / "b/client")
    assert "CERTIFICATE_VERIFY_FAILED" in shake_hands(tmp_path / "a/server", tmp_path / "a/client", "elsewhere.example")


def test_keys_are_the_owners_alone_and_never_overwritten(tmp_path: Path) -> None:
    make_keys(tmp_path / "a", ["localhost"])
    key = tmp_path / "a/server/key.pem"
    assert key.stat().st_mode & 0o777 == 0o600
    before = key.read_bytes()
    with pytest.raises(EngineError, match="is there already"):
        make_keys(tmp_path / "a", ["localhost"])
    assert key.read_bytes() == before
    assert sorted(path.name for path in (tmp_path / "a").rglob("*.pem")) == sorted(
        ["authority.pem", "certificate.pem", "key.pem"] * 3
    )
    assert shake_hands(tmp_path / "a/dealer", tmp_path / "a/server", "localhost") == "welcome"


def test_a_missing_or_damaged_file_is_named(tmp_path: Path) -> None:
    make_keys(tmp_path / "a", ["localhost"])
    (tmp_path / "a/client/certificate.pem").write_text("nothing")
    with pytest.raises(EngineError, match="client: its certificates cannot be used"):
        tls_of(tmp_path / "a/client").client_context()
    (tmp_path / "a/client/key.pem").unlink()
    with pytest.raises(EngineError, match=r"no .*client/key\.pem"):
        tls_of(tmp_path / "a/client")
