import pytest

from deepshare.errors import EngineError
from deepshare.private.remote.client import Server, connected


@pytest.mark.parametrize("server", ["localhost", "localhost:abc", "localhost:99999", "[::1", ":8443"])
def test_an_address_that_is_none(server: str) -> None:
    with pytest.raises(EngineError, match="is no address of a server: give HOST:PORT"):
        connected(Server(address=server, engine="crypten")).__enter__()


def test_another_machine_without_tls_and_nothing_that_decides_are_refused() -> None:
    with pytest.raises(EngineError, match=r"192\.0\.2\.7 is another machine, and without TLS .* --insecure"):
        Server(address="192.0.2.7:8443", engine="gateshare").check()
    Server(address="192.0.2.7:8443", engine="gateshare", insecure=True).check()
    for here in ("127.0.0.1:8443", "localhost:8443", "[::1]:8443"):
        Server(address=here, engine="gateshare").check()
    with pytest.raises(EngineError, match="give your pool with --pool, or an engine with --engine"):
        Server(address="localhost:8443").check()
