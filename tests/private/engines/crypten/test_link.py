"""Connections between threads of this process, over real sockets."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch

from deepshare.errors import EngineError
from deepshare.private.engines.crypten.link import RANKS, Link
from deepshare.private.engines.crypten.triples import Dealer, FirstParty, Mask, Seeded, Served, Source
from deepshare.private.runtime.engine import Role
from deepshare.private.runtime.local import free_ports

T = TypeVar("T")


def together(roles: tuple[Role, ...], work: Callable[[Link], T]) -> list[T]:
    """Do work in all parties at a time."""
    ports = free_ports("127.0.0.1", len(roles))
    addresses = {role: f"127.0.0.1:{port}" for role, port in zip(roles, ports, strict=True)}
    with ThreadPoolExecutor(len(roles)) as pool:
        return list(pool.map(lambda role: work(Link(role, addresses)), roles))


def test_an_exchange_is_one_round_and_counts_what_is_sent() -> None:
    def work(link: Link) -> tuple[list[torch.Tensor], int, int]:
        opened = link.open([torch.full((2, 3), 5 + link.rank), torch.tensor([link.rank])])
        assert link.exchange([torch.empty(0, dtype=torch.long)])[0].shape == (0,)
        link.meet()
        return opened, link.sent, link.rounds

    for opened, sent, rounds in together(("server", "client"), work):
        assert torch.equal(opened[0], torch.full((2, 3), 11)) and opened[1].tolist() == [1]
        assert sent == 7 * 8 and rounds == 1


def test_a_party_that_is_gone_is_noticed() -> None:
    def work(link: Link) -> str:
        if link.rank == 1:
            return ""
        with pytest.raises(ConnectionError) as caught:
            link.meet()
        return str(caught.value)

    assert together(("server", "client"), work)[0] == "the connection to another party broke"


def test_a_port_that_is_taken() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(EngineError, match=f"port {port} of 127.0.0.1 is taken"):
            Link("server", {"server": f"127.0.0.1:{port}", "client": "127.0.0.1:1"})


def masks(source: Source) -> list[Mask]:
    a, b = source.fresh((3, 4)), source.fresh((4,))
    bits = source.fresh((5,), xor=True, bits=1)
    return [
        a,
        b,
        source.derived((3, 4), lambda: a.value * b.value),
        bits,
        source.derived((5,), lambda: bits.value),
        source.derived((5,), lambda: bits.value & -1, xor=True),
        b.map(lambda part: part.view(2, 2)),
    ]


def check(server: list[Mask], client: list[Mask], known: list[Mask]) -> None:
    xor = [False, False, False, True, False, True, False]
    for mine, theirs, mask, exclusive in zip(server, client, known, xor, strict=True):
        together = mine.share ^ theirs.share if exclusive else mine.share + theirs.share
        assert torch.equal(together, mask.value)
        with pytest.raises(RuntimeError, match="does not know"):
            _ = theirs.value
    assert torch.equal(known[2].value, known[0].value * known[1].value)
    assert set(known[3].value.tolist()) <= {0, 1}


def test_a_first_party_knows_all_masks_and_the_client_its_shares() -> None:
    first = FirstParty(1, 2)
    server = masks(first)
    check(server, masks(Seeded(2)), server)
    assert first.dealt == (12 + 5 + 5) * 8


def test_a_third_party_deals_what_adds_up() -> None:
    def work(link: Link) -> tuple[list[Mask], int, int]:
        sources: list[Source] = [Served(1, link), Seeded(2), Dealer(1, 2, link)]
        source = sources[link.rank]
        made = masks(source)
        link.part()
        return made, source.dealt, link.sent

    server, client, dealer = together(tuple(RANKS), work)
    check(server[0], client[0], dealer[0])
    assert dealer[1:] == ((12 + 5 + 5) * 8, (12 + 5 + 5) * 8) and server[1:] == client[1:] == (0, 0)
    with pytest.raises(RuntimeError, match="does not know"):
        _ = server[0][0].value
