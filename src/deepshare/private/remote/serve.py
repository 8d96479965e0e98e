"""The server's and the dealer's side in one call each: the public outline, the pools, the server and its end."""

import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor, nn

from deepshare.data.images import About
from deepshare.errors import EngineError
from deepshare.private.api import from_run, training_images
from deepshare.private.ir.trace import Revealed, translate, with_answer
from deepshare.private.remote.server import Listening, ModelServer, Network
from deepshare.private.remote.tls import tls_of_host
from deepshare.private.runtime.engine import check_installed, engine_with_preprocessing, find_engine
from deepshare.private.runtime.preprocessing import Dealt
from deepshare.training.run.folder import run_folder

# Connections to the monitor at once, so that they never take the descriptors of clients.
MOST_ASKING = 32

Trained = str | Path | tuple[nn.Module, About]
"""A finished run or a network by name; or a trained network in memory and what its images are like."""


def serve(
    networks: Trained | list[str | Path] | Mapping[str, Trained],
    *,
    engine: str = "gateshare",
    host: str = "127.0.0.1",
    port: int = 8443,
    tls: str | Path | None = None,
    pool: str | Path | Sequence[str | Path] = (),
    best: bool = False,
    answer: Revealed = "logits",
    max_clients: int = 64,
    max_each: int = 16,
    monitor: str | None = None,
    drain: float = 30.0,
    ready: Callable[[Listening], None] | None = None,
) -> None:
    """Serve clients on other machines, without revealing the weights, until interrupted or shut down.

    A client that deviates from the protocol of gateshare can read exact weights: serve only clients that you would
    trust with the model. In the main thread SIGTERM ends it after the clients that are being answered. It logs to
    `deepshare.server`.

    Args:
        networks: A run folder or several, which clients name by the folder's name, or networks by name; or networks in
            memory, as a mapping from names to (model, `deepshare.data.About`); a single one is called "network".
        engine: One of `engine_names()`.
        host: Address to listen on; 0.0.0.0 for all interfaces.
        port: Port to listen on; 0 for a free one.
        tls: Folder with the certificates of this party.
        pool: Pools of the server, or folders of pools in which more may appear.
        best: Use the weights with the best validation score.
        answer: What clients get: logits, or with gateshare the best class or the best five and no logits.
        max_clients: Number of clients that are answered at once.
        max_each: Number of those with one certificate.
        monitor: HOST:PORT for /healthz and /metrics.
        drain: Seconds for clients that are being answered, on SIGTERM.
        ready: Called once the port is open, with the server: its `address`, and `shutdown`, which ends this call.

    Raises:
        EngineError: The engine is not installed, the port is taken, or a pool is for something else.
        CheckpointError: A run is unfinished or damaged.
        UnsupportedModelError: The engine cannot run a network.
    """
    chosen = find_engine(engine)
    check_installed(chosen)
    if max_clients < 1 or max_each < 1 or not 0 <= drain < math.inf:
        given = f"--max-clients {max_clients} --max-each {max_each} --drain {drain:g}"
        raise EngineError(f"{given}: serve at least one client, and give seconds of 0 or more")
    certificates = None if tls is None else tls_of_host(Path(tls))
    pools = (pool,) if isinstance(pool, str | Path) else tuple(pool)
    options: Mapping[str, str] = {}
    if pools:
        if chosen.preprocessing is None:
            dealt = engine_with_preprocessing()[0].name
            raise EngineError(f"--pool is for engine {dealt} and this is {engine}: add --engine {dealt}")
        options = chosen.preprocessing.options
    served = {name: _network(one, best, answer) for name, one in _named(networks).items()}
    for network in served.values():
        chosen.check(network.program, options)
    server = ModelServer(
        engine=chosen,
        options=options,
        networks=served,
        tls=certificates,
        pools=tuple(Path(path).absolute() for path in pools),
        max_clients=max_clients,
        max_each=max_each,
    )
    with server.listen(host, port) as listening:
        if certificates is None and host not in ("127.0.0.1", "localhost"):
            server.journal.warning("without --tls anyone on the network can listen and send requests")
        elif certificates is not None and not chosen.encrypts:
            server.journal.warning(f"--tls protects only the handshake; engine {engine} sends its shares unencrypted")
        gates = ", ".join(f"{name} ({network.program.comparisons:,} gates)" for name, network in served.items())
        if ready is not None:
            ready(listening)
        _wait(listening, f"serving {gates} on {listening.address} with {engine}, answer: {answer}", monitor, drain)


def outline(
    network: Trained,
    out: str | Path,
    *,
    samples: int | Tensor = 0,
    data_dir: Path | None = None,
    best: bool = False,
    answer: Revealed = "logits",
    comparison_bits: int | str | None = None,
) -> None:
    """Write the public outline of a network for the dealer of gateshare: layers and number format, no weights.

    Args:
        network: A run folder, or (model, `deepshare.data.About`).
        out: File to write.
        samples: Images to calibrate the range of numbers on: normalised, (N, C, H, W), or a number of training images
            of the run; 0 for synthetic images that cover the range of normalised ones.
        data_dir: Folder of data sets.
        best: Use the weights with the best validation score.
        answer: What clients get.
        comparison_bits: Bits of a comparison, by default all of the range: a number, or "calibrated" for as many as
            leave less than one gate in 40,000 wrong, on the samples. Keys are smaller and gates faster.

    Raises:
        CheckpointError: The run is unfinished or damaged.
        UnsupportedModelError: The engine cannot run the network.
        EngineError: The file cannot be written, or so few bits are wrong too often.
    """
    if isinstance(samples, int) and samples < 0:
        raise EngineError(f"{samples} samples: give a number of training images, or 0 for synthetic ones")
    engine, preprocessing = engine_with_preprocessing()
    options = {} if comparison_bits is None else {"comparison_bits": str(comparison_bits)}
    program = _network(network, best, answer).program
    engine.check(program, options)
    calibrated = samples if isinstance(samples, Tensor) else _training_images(network, samples, data_dir)
    preprocessing.write_outline(Path(out), program, calibrated, options)


def deal(
    outline: str | Path,
    out: str | Path,
    *,
    images: int = 100,
    clients: int = 1,
    owners: Sequence[str] = (),
    on_progress: Callable[[int, int], None] = lambda lots, total: None,
) -> Dealt:
    """Deal the randomness of gateshare for a number of images: OUT/server for one party, OUT/client for the other.

    Together with either party the dealer could read everything, so both must trust it.

    Args:
        outline: File from `outline`.
        out: Folder to write.
        images: Number of images per client.
        clients: Number of clients; several have the folders OUT/client-1, OUT/client-2 ...
        owners: Names in the clients' certificates, in their order: the server refuses their lots from others. By
            default whoever has a pool may use it.
        on_progress: Called after each lot with how many there are, and of how many.

    Returns:
        Lots to spare for each client, and the bound of the statistical distance between the server's views of any two
        images.

    Raises:
        EngineError: The outline cannot be read, or the pools cannot be written.
    """
    if images < 1 or clients < 1:
        raise EngineError(f"{images} images for {clients} clients: deal for at least one each")
    preprocessing = engine_with_preprocessing()[1]
    return preprocessing.deal(
        Path(outline), Path(out), images=images, clients=clients, on_progress=on_progress, owners=owners
    )


def _training_images(network: Trained, count: int, data_dir: Path | None) -> Tensor | None:
    if not count:
        return None
    if isinstance(network, tuple):
        raise EngineError("a network in memory names no training images: give some as samples, or 0 for synthetic ones")
    return training_images(run_folder(network), count, data_dir)


def _named(networks: Trained | list[str | Path] | Mapping[str, Trained]) -> Mapping[str, Trained]:
    """Networks by the names that clients give."""
    if isinstance(networks, Mapping):
        return networks
    if isinstance(networks, tuple):
        return {"network": networks}
    runs = [networks] if isinstance(networks, str | Path) else networks
    folders = {run: run_folder(run).resolve() for run in map(str, runs)}
    # A network that was given by its name has a folder of another.
    named = [(folder.name if Path(run).exists() else run, folder) for run, folder in folders.items()]
    if len(dict(named)) < len(runs):
        raise EngineError("two runs have the same folder name, which clients name them by: rename one")
    return dict(named)


def _network(network: Trained, best: bool, answer: Revealed) -> Network:
    if not isinstance(network, tuple):
        return Network(*from_run(run_folder(network), best=best, answer=answer))
    if best:
        raise EngineError("a network in memory has one set of weights: leave out best")
    model, about = network
    program = with_answer(translate(model, about.size), answer)
    if len(about.classes) != program.classes:
        raise EngineError(f"{len(about.classes)} names for {program.classes} classes: give one for each class")
    return Network(program, about)


def _wait(listening: Listening, said: str, monitor: str | None, drain: float) -> None:
    """Serve until Ctrl-C, or until SIGTERM and the end of those that are being answered, or until `shutdown`.

    Outside the main thread, which alone gets signals, only `shutdown` ends it.

    Args:
        listening: The server.
        said: What it logs when it is ready.
        monitor: HOST:PORT for health and figures; None for none.
        drain: Seconds for those that are being answered.
    """
    journal, stopping = listening.journal, threading.Event()

    def end(*_: int | FrameType | None) -> None:
        if not stopping.is_set():
            stopping.set()
            threading.Thread(target=finish, daemon=True).start()

    def finish() -> None:
        journal.info(f"stopping: {listening.sessions} clients are being answered")
        whole = listening.drain(drain)
        journal.info("ended" if whole else f"ended, with {listening.sessions} clients cut off")
        listening.shutdown()

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, end) if in_main else None
    try:
        with _monitored(listening, monitor, stopping):
            journal.info(said)
            listening.serve_forever()
    except KeyboardInterrupt:
        journal.info("ended")
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _monitored(listening: Listening, address: str | None, stopping: threading.Event) -> Iterator[None]:
    """Answer /healthz and /metrics for as long as this lasts.

    Raises:
        EngineError: The address is none, or is taken.
    """
    if address is None:
        yield
        return

    asking = threading.BoundedSemaphore(MOST_ASKING)

    class Monitor(ThreadingHTTPServer):
        daemon_threads = True
        # A burst that overflows the queue of unaccepted connections waits for seconds until the kernel tries again.
        request_queue_size = 128

        def process_request(self, request: Any, client_address: Any) -> None:
            """Answer in a thread, unless there are too many."""
            if asking.acquire(blocking=False):
                super().process_request(request, client_address)
            else:
                self.shutdown_request(request)

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            """Answer, and make room."""
            try:
                super().process_request_thread(request, client_address)
            finally:
                asking.release()

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Log a fault of ours; whoever hangs up is none."""
            error = sys.exception()
            if error is not None and not isinstance(error, ConnectionError | TimeoutError):
                listening.journal.failed("the monitor", error)

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            """Answer."""
            if self.path == "/healthz":
                code, body = (503, b"stopping\n") if stopping.is_set() else (200, b"ok\n")
            elif self.path == "/metrics":
                code, body = 200, listening.metrics()
            else:
                code, body = 404, b"give /healthz or /metrics\n"
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: it is asked all the time."""

    host, _, port = address.rpartition(":")
    try:
        server = Monitor((host or "127.0.0.1", int(port)), Handler)
    except (ValueError, OverflowError) as error:
        raise EngineError(f"--monitor {address}: give HOST:PORT") from error
    except OSError as error:
        raise EngineError(f"cannot listen on {address} ({error.strerror}): give another --monitor") from error
    threading.Thread(target=server.serve_forever, name="monitor", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
