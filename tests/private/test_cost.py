"""Costs of parties and of links."""

import pytest

from deepshare.private.cost import LAN, WAN, seconds_on
from deepshare.private.runtime.outcome import Part


def test_time_on_a_link() -> None:
    part = Part(server_bytes=10**6, client_bytes=125 * 10**5, rounds=10)
    assert seconds_on(LAN, part, 2) == pytest.approx(10 * 2 * 0.00025 + 0.1)
    assert seconds_on(WAN, part, 1) == pytest.approx(10 * 0.02 + 1)


def test_costs_of_parties_come_together() -> None:
    server, client = (
        Part(2.0, server_bytes=5, rounds=3, comparisons=7),
        Part(3.0, client_bytes=6, rounds=3, comparisons=7),
    )
    assert server.beside(client) == Part(3.0, 5, 6, 0, 3, 7, 0)
    assert server + server == Part(4.0, 10, 0, 0, 6, 14, 0)
