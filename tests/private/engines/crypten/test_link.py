"""Connections between threads of this process, over real sockets."""

import socket

import pytest
import torch

from deepshare.errors import EngineError
from deepshare.private.engines.crypten.link import GlooLink
from tests.private.engines.crypten.parties import in_all_parties


def test_an_exchange_is_one_round_and_counts_what_is_sent() -> None:
    def work(link: GlooLink) -> tuple[list[torch.Tensor], int, int]:
        opened = link.open([torch.full((2, 3), 5 + link.rank), torch.tensor([link.rank])])
        assert link.exchange([torch.empty(0, dtype=torch.long)])[0].shape == (0,)
        link.meet()
        return opened, link.sent, link.rounds

    for opened, sent, rounds in in_all_parties(("server", "client"), work):
        assert torch.equal(opened[0], torch.full((2, 3), 11)) and opened[1].tolist() == [1]
        assert sent == 7 * 8 and rounds == 1


def test_a_party_that_is_gone_is_noticed() -> None:
    def work(link: GlooLink) -> str:
        if link.rank == 1:
            return ""
        with pytest.raises(ConnectionError) as caught:
            link.meet()
        return str(caught.value)

    assert in_all_parties(("server", "client"), work)[0] == "the connection to another party broke"


def test_a_port_that_is_taken() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(EngineError, match=f"port {port} of 127.0.0.1 is taken"):
            GlooLink("server", {"server": f"127.0.0.1:{port}", "client": "127.0.0.1:1"})
