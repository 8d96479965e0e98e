"""All parties in threads of this process, over real sockets."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from deepshare.private.engines.crypten.link import GlooLink
from deepshare.private.runtime.engine import Role
from deepshare.private.runtime.party import free_ports

T = TypeVar("T")


def in_all_parties(roles: tuple[Role, ...], work: Callable[[GlooLink], T]) -> list[T]:
    """Do the same work in every party at once."""
    ports = free_ports("127.0.0.1", len(roles))
    addresses = {role: f"127.0.0.1:{port}" for role, port in zip(roles, ports, strict=True)}
    with ThreadPoolExecutor(len(roles)) as pool:
        return list(pool.map(lambda role: work(GlooLink(role, addresses)), roles))
