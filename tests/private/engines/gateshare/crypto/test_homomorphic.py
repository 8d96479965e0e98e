"""Products of groups: how they are cut, and what is refused. The encryption itself is in `test_two_party.py`."""

import importlib.metadata
import importlib.util
from typing import Any

import pytest
import torch

from deepshare.errors import EngineError
from deepshare.private.engines.gateshare.crypto.homomorphic import SPU_VERSION, GroupedSize, check_installed
from deepshare.private.engines.gateshare.lot import Holder
from deepshare.private.transport.channel import Channel
from deepshare.private.transport.duplex import Duplex
from tests.private.engines.gateshare.crypto.two_ends import at_both_ends, well
from tests.private.engines.gateshare.two_party import InTheOpen


@pytest.mark.parametrize(
    ("size", "products"),
    [
        (GroupedSize(1, 1024, 144, 16), [(1024, 144, 16)]),
        (GroupedSize(16, 1024, 2, 1), [(1024, 32, 16)]),
        (GroupedSize(20, 1024, 2, 1), [(1024, 32, 16), (1024, 8, 4)]),
        (GroupedSize(512, 16, 2, 1), [(16, 1024, 512)]),
        (GroupedSize(4, 1024, 144, 16), [(1024, 144, 16)] * 4),
        (GroupedSize(3, 9000, 9, 1), [(9000, 32, 3)]),
    ],
)
def test_groups_go_together_as_far_as_it_saves(size: GroupedSize, products: list[tuple[int, int, int]]) -> None:
    assert [one for _, one in size.products()] == products
    assert [group for groups, _ in size.products() for group in range(size.groups)[groups]] == list(range(size.groups))


def test_every_group_is_multiplied_by_its_own_matrix() -> None:
    size = GroupedSize(20, 1000, 3, 2)
    A, W = torch.randint(-(2**63), 2**63 - 1, (20, 1000, 3)), torch.randint(-(2**20), 2**20, (20, 3, 2))

    def multiply(party: Holder, channel: Channel) -> Any:
        with Duplex(channel, 0) as duplex:
            encrypted, own = InTheOpen.begin(duplex, party), W if party == "server" else A
            return torch.cat([encrypted.groups(own[groups], one) for groups, one in size.products()])

    ends = well(at_both_ends(lambda channel: multiply("server", channel), lambda channel: multiply("client", channel)))
    assert torch.equal(ends.results[0] + ends.results[1], A @ W)


def test_without_the_one_spu_whose_shares_are_known_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.9.5")
    with pytest.raises(EngineError, match=rf"made for spu {SPU_VERSION}, not 0\.9\.5: install it with pip install"):
        check_installed()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r"need SPU: install it with pip install .*Python 3\.11 on Linux"):
        check_installed()
