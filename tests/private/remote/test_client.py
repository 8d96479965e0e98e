import pytest

from deepshare.errors import EngineError
from deepshare.private.remote.client import connected


@pytest.mark.parametrize("server", ["localhost", "localhost:abc", "localhost:99999", "[::1", ":8443"])
def test_an_address_that_is_none(server: str) -> None:
    with pytest.raises(EngineError, match="is no address of a server: give HOST:PORT"), connected(server):
        pass
