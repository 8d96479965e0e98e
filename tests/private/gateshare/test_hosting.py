"""Many clients of one server at once, over real sockets."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import Tensor
from websockets.sync.client import connect as knock

from deepshare.data.about import About
from deepshare.errors import EngineError
from deepshare.private import outline, plain
from deepshare.private.ask import connected
from deepshare.private.control import Control
from deepshare.private.engine import Role, Task, find_engine
from deepshare.private.gateshare.channel import connect
from deepshare.private.gateshare.numbers import calibrate
from deepshare.private.gateshare.party import run
from deepshare.private.gateshare.pool import Pool, write_pools
from deepshare.private.program import Program
from deepshare.private.result import Outcome
from deepshare.private.serve import Service
from deepshare.private.translate import translate
from tests.private.gateshare.trial import SIZE, shared_resnet

ABOUT = About(size=SIZE, mean=(0.5,) * 3, std=(0.25,) * 3, classes=tuple(map(str, range(10))))
POOL = {"dealer": "pool"}
CLIENTS = 3


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(41)
    return translate(shared_resnet(), SIZE)


@pytest.fixture
def pools(program: Program, tmp_path: Path) -> Path:
    write_pools(tmp_path, program.outline(), calibrate(program), 2, lambda _: None, CLIENTS)
    return tmp_path


@pytest.fixture
def address(program: Program, pools: Path) -> Iterator[str]:
    service = Service(find_engine("gateshare"), POOL, program, ABOUT, None, print, pools / "server", most=CLIENTS)
    server = service.open("127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.socket.getsockname()[1]}"
    server.shutdown()


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(42)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def begin(stack: ExitStack, address: str, program: Program, images: int) -> tuple[Control, dict[Role, str]]:
    """Agree with the server as a client does, and learn where its part waits."""
    control = Control(stack.enter_context(knock(f"ws://{address}", compression=None)), "server")
    control.send({"protocol": 1})
    control.receive()
    control.send({"images": images, "address": "127.0.0.1:1", "outline": outline.digest(program)})
    return control, control.receive()["start"]


def finish(program: Program, addresses: dict[Role, str], images: Tensor, pool: Path) -> Outcome:
    task = Task("client", program.outline(), addresses, images, len(images), None, POOL, pool)
    return run(task, lambda: None)


def near(logits: Tensor | None, program: Program, images: Tensor) -> bool:
    return logits is not None and float((logits - plain.evaluate(program, images)).abs().max()) < 2.0**-4


def test_each_client_has_its_own_lots_and_the_server_has_them_all(program: Program, pools: Path) -> None:
    mine = set(Pool(pools / "server", "server", program).names())
    theirs = [set(Pool(pools / f"client-{n + 1}", "client", program).names()) for n in range(CLIENTS)]
    assert set.union(*theirs) == mine and sum(map(len, theirs)) == len(mine) == 2 * CLIENTS


def test_clients_at_once_each_get_their_own_logits(
    stack: ExitStack, address: str, program: Program, pools: Path
) -> None:
    """All are connected before the first is answered; nobody waits for another one's end."""
    begun = [begin(stack, address, program, 2) for _ in range(CLIENTS)]
    images = [torch.randn(2, *SIZE) for _ in begun]
    found: dict[int, Outcome] = {}

    def ask(number: int) -> None:
        found[number] = finish(program, begun[number][1], images[number], pools / f"client-{number + 1}")

    threads = [threading.Thread(target=ask, args=(number,)) for number in reversed(range(CLIENTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(near(found[number].logits, program, images[number]) for number in range(CLIENTS))
    assert Pool(pools / "server", "server", program).names() == []


def test_a_client_that_stalls_or_vanishes_holds_up_nobody(
    stack: ExitStack, address: str, program: Program, pools: Path
) -> None:
    _, where = begin(stack, address, program, 1)
    silent = connect(where["server"], "server", None)
    silent.hear()  # the server waits for its answer now
    gone, there = begin(stack, address, program, 1)
    lost = connect(there["server"], "server", None)
    lost.hear()
    lost.close()
    gone._connection.close()
    images = torch.randn(2, *SIZE)
    started = time.monotonic()
    with connected(address, None, pools / "client-1") as client:
        assert near(client.ask(images).logits, program, images)
    assert time.monotonic() - started < 60


def test_no_more_clients_than_there_are_places(stack: ExitStack, address: str, program: Program) -> None:
    held = [begin(stack, address, program, 1)[0] for _ in range(CLIENTS)]
    with pytest.raises(EngineError, match="3 clients are connected already: ask again later"), connected(address):
        pass
    held[0]._connection.close()
    deadline = time.monotonic() + 20
    while True:
        try:
            with connected(address):
                break
        except EngineError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_client_cannot_ask_more_than_was_dealt_for_it(address: str, program: Program, pools: Path) -> None:
    with connected(address, None, pools / "client-2") as client:
        client.ask(torch.randn(2, *SIZE))
    with (
        connected(address, None, pools / "client-2") as client,
        pytest.raises(EngineError, match="1 images and 0 lots left in the pool"),
    ):
        client.ask(torch.randn(1, *SIZE))
