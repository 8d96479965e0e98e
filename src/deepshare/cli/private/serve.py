"""`deepshare private serve` and `dealer`: services, which run until they are stopped."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from deepshare.cli.options import DEFAULT_ENGINE, AnswerKind, Best, Engines, Flag, TlsFolder
from deepshare.cli.private.pool import end_as_interrupted
from deepshare.cli.private.show import warn
from deepshare.errors import EngineError

POOLS = "Pool of the server, or a folder of pools in which more may appear: dealt, or made with clients."


def serve(
    runs: Annotated[list[str], Parameter(help="Folders of finished runs, or networks by name; clients name one.")],
    /,
    *,
    engine: Engines = DEFAULT_ENGINE,
    host: str = "127.0.0.1",
    port: int = 8443,
    tls: TlsFolder = None,
    pool: Annotated[list[Path] | None, Parameter(help=POOLS)] = None,
    best: Best = False,
    answer: AnswerKind = "logits",
    max_clients: int = 64,
    max_each: int = 16,
    monitor: str | None = None,
    log_level: str = "info",
    log_json: Flag = False,
    drain: float = 30.0,
) -> None:
    """Serve clients on other machines until interrupted, without revealing the weights.

    A client that deviates from the protocol of gateshare can read exact weights: serve only clients that you would
    trust with the model, and with --answer class those that you know less well. The engine determines the protection of
    the images: gateshare, with a dealer's pools, gateshare-2pc and spu-cheetah hide them from a semi-honest server;
    crypten and spu-semi2k are for measuring.

    SIGTERM ends it after the clients that are being answered, within --drain seconds. Every flag may also be given as a
    variable (DEEPSHARE_PRIVATE_SERVE_PORT) or under [private.serve] of a file deepshare.toml in this folder.

    Args:
        host: Address to listen on; 0.0.0.0 for all interfaces.
        port: Port to listen on. With --pool there is no other; without, gateshare-2pc opens another for each session
            on the server, and all other engines do so on both machines.
        max_clients: Number of clients that are answered at once.
        max_each: Number of those with one certificate.
        monitor: HOST:PORT for /healthz and /metrics; none by default.
        log_level: debug, info, warning or error.
        log_json: Log a JSON object a line.
        drain: Seconds for clients that are being answered, on SIGTERM.
    """
    from deepshare.private.remote.guests.journal import start_logging
    from deepshare.private.remote.serve import serve as serve_networks
    from deepshare.private.runtime.engine import find_engine

    chosen = find_engine(engine)
    start_logging(log_level, as_json=log_json)
    serve_networks(
        [*runs],
        engine=engine,
        host=host,
        port=port,
        tls=tls,
        pool=pool or (),
        best=best,
        answer=answer,
        max_clients=max_clients,
        max_each=max_each,
        monitor=monitor,
        drain=drain,
        ready=lambda _: warn(chosen),
    )


def dealer(
    outline: Path,
    folder: Path,
    /,
    *,
    listen: str = "127.0.0.1:8444",
    tls: Path,
    server: str = "DeepShare server",
    level: int = 100,
    images: int = 10_000,
    log_level: str = "info",
    log_json: Flag = False,
) -> None:
    """Deal lots of gateshare as they are used: to the server and its clients over TLS, each to its owner alone.

    The parties fetch them with private pool fill. What both have is overwritten here. Together with either party the
    dealer could read everything, so both must trust it. Every flag may also be given as a variable
    (DEEPSHARE_PRIVATE_DEALER_LISTEN) or under [private.dealer] of a file deepshare.toml in this folder.

    Args:
        outline: File from private outline.
        folder: Folder for the dealing and for lots on their way; secret.
        listen: HOST:PORT to listen on; 0.0.0.0:PORT for all interfaces.
        tls: Folder with the certificates of the dealer.
        server: Name in the server's certificate; all others are clients.
        level: Number of lots that each client should have.
        images: Number of images that each client may ever ask.
        log_level: debug, info, warning or error.
        log_json: Log a JSON object a line.
    """
    from deepshare.private.remote.dealer import DealerService, Dealership
    from deepshare.private.remote.guests.journal import start_logging
    from deepshare.private.remote.tls import tls_of_host

    if level < 1 or images < 1:
        raise EngineError(f"a level of {level} for {images} images: give at least one each")
    start_logging(log_level, as_json=log_json)
    end_as_interrupted()
    service = DealerService(Dealership(folder, outline, level=level, images=images), listen, tls_of_host(tls), server)
    service.journal.info(f"dealing for {server} and its clients on {service.address}")
    try:
        service.run()
    except KeyboardInterrupt:
        service.journal.info("ended")
