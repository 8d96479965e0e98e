"""`deepshare private`: private inference with a trained network."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from cyclopts.config import Env, Toml

from deepshare.cli.options import (
    ENGINES,
    AnswerKind,
    Flag,
    Json,
    PoolFolder,
    RunArgument,
    TlsFolder,
    check_writable,
    importing,
)
from deepshare.cli.private_pool import MADE, note, prepare, warn
from deepshare.cli.private_pool import pool as pool_commands
from deepshare.cli.private_ui import ui
from deepshare.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor

    from deepshare.data.images import About
    from deepshare.private.cost import Result
    from deepshare.private.ir.program import Program
    from deepshare.private.remote.client import ModelClient
    from deepshare.private.runtime.engine import Engine, Preprocessing

DEFAULT = "gateshare"

private = App(name="private", help="Private inference: the server keeps its weights, the client its images.")

private.command(pool_commands)
private.command(ui)
private.command(prepare)

Engines = Annotated[str, Parameter(name=["--engine", "-e"], help=f"{ENGINES}.")]
Provider = Annotated[
    str | None,
    Parameter(help="Source of crypten's triples: tfp (the server, the default) or ttp (a third party)."),
]
Images = Annotated[
    list[Path] | None, Parameter(consume_multiple=True, help="Image files; by default test images of the data set.")
]
Fit = Annotated[Flag, Parameter(help="Resize and crop images of another size.")]
Best = Annotated[Flag, Parameter(help="Use the weights with the best validation score.")]
Layers = Annotated[Flag, Parameter(help="Show the cost of each layer.")]
Labels = Annotated[
    Path | None,
    Parameter(name=["--out", "-o"], help="PNG for the classes of the pixels, for a segmentation network."),
]
POOLS = "Pool of the server, or a folder of pools in which more may appear: dealt, or made with clients."


@private.command
def run(
    run: RunArgument,
    /,
    *,
    engine: Engines = DEFAULT,
    images: Images = None,
    samples: int = 4,
    data_dir: Path | None = None,
    fit: Fit = False,
    best: Best = False,
    provider: Provider = None,
    answer: AnswerKind = "logits",
    out: Labels = None,
    layers: Layers = False,
    as_json: Json = False,
) -> None:
    """Run all parties on this machine, each in a separate process, and show the classes and the cost.

    Args:
        samples: Number of test images, if no image files are given.
        data_dir: Folder of data sets.
    """
    from deepshare.private.api import from_run
    from deepshare.private.api import run as run_program
    from deepshare.private.runtime.engine import check_installed, find_engine
    from deepshare.training.run.folder import run_folder

    chosen = find_engine(engine)
    check_installed(chosen)
    run = run_folder(run)
    program, about = from_run(run, best=best, answer=answer)
    check_out(out, program)
    names, batch = _images(run, about, images, samples, data_dir, fit)
    warn(chosen)
    options = _options(provider)
    chosen.check(program, options)
    note_making(chosen, program, len(batch), options)
    result = run_program(program, batch, engine, options)
    show(result, about, names, layers, as_json, out)


# Flags may be given as variables, DEEPSHARE_PRIVATE_SERVE_PORT, or under [private.serve] of this file.
@private.command(config=(Env("DEEPSHARE_"), Toml("deepshare.toml")))
def serve(
    runs: Annotated[list[str], Parameter(help="Folders of finished runs, or networks by name; clients name one.")],
    /,
    *,
    engine: Engines = DEFAULT,
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
    trust with the model. The engine determines the protection of the images: gateshare, with a dealer's pools,
    gateshare-2pc and spu-cheetah hide them from a semi-honest server; crypten and spu-semi2k are for measuring.

    SIGTERM ends it after the clients that are being answered, within --drain seconds. Every flag may also be given as a
    variable (DEEPSHARE_PRIVATE_SERVE_PORT) or under [private.serve] of a file deepshare.toml in this folder.

    Args:
        host: Address to listen on; 0.0.0.0 for all interfaces.
        port: Port to listen on. With --pool there is no other; without, gateshare-2pc opens more, all others on both
            machines.
        max_clients: Number of clients that are answered at once.
        max_each: Number of those with one certificate.
        monitor: HOST:PORT for /healthz and /metrics; none by default.
        log_level: debug, info, warning or error.
        log_json: Log a JSON object a line.
        drain: Seconds for clients that are being answered, on SIGTERM.
    """
    from deepshare.private.api import from_run
    from deepshare.private.remote.operation import start_logging, wait
    from deepshare.private.remote.server import ModelServer, Network
    from deepshare.private.runtime.engine import check_installed, find_engine
    from deepshare.private.transport.tls import tls_of
    from deepshare.training.run.folder import run_folder

    chosen = find_engine(engine)
    check_installed(chosen)
    start_logging(log_level, as_json=log_json)
    certificates = None if tls is None else tls_of(tls)
    options: Mapping[str, str] = {}
    if pool:
        if chosen.preprocessing is None:
            dealt = _preprocessing()[0]
            raise EngineError(f"--pool is for engine {dealt} and this is {engine}: add --engine {dealt}")
        options = chosen.preprocessing.options
    folders = [run_folder(run).resolve() for run in runs]
    if len({folder.name for folder in folders}) < len(folders):
        raise EngineError("two runs have the same folder name, which clients name them by: rename one")
    networks = {folder.name: Network(*from_run(folder, best=best, answer=answer)) for folder in folders}
    for network in networks.values():
        chosen.check(network.program, options)
    warn(chosen)
    if certificates is None and host not in ("127.0.0.1", "localhost"):
        note("without --tls anyone on the network can listen and send requests")
    elif certificates is not None and not chosen.encrypts:
        note(f"--tls protects only the handshake; engine {engine} sends its shares unencrypted")
    server = ModelServer(
        engine=chosen,
        options=options,
        networks=networks,
        tls=certificates,
        pools=tuple(path.absolute() for path in pool or ()),
        max_clients=max_clients,
        max_each=max_each,
    )
    with server.listen(host, port) as listening:
        gates = ", ".join(f"{name} ({network.program.comparisons:,} gates)" for name, network in networks.items())
        wait(listening, f"serving {gates} on {listening.address} with {engine}, answer: {answer}", monitor, drain)


@private.command
def ask(
    images: Annotated[list[Path], Parameter(help="Image files.")],
    /,
    *,
    server: str,
    engine: Annotated[str | None, Parameter(name=["--engine", "-e"])] = None,
    network: str | None = None,
    tls: TlsFolder = None,
    pool: PoolFolder = None,
    insecure: Flag = False,
    fit: Fit = False,
    plan: Path | None = None,
    out: Labels = None,
    layers: Layers = False,
    as_json: Json = False,
) -> None:
    """Classify images with a server, without revealing them.

    Args:
        server: HOST:PORT of deepshare private serve.
        engine: Engine of the server; a server with another one is refused. With --pool it is that of the pool.
        network: Name of the network, if the server has several.
        insecure: Ask another machine without TLS: everyone between can read and change what is sent.
        plan: Plan file; a server with another plan is refused.
    """
    with importing():
        from deepshare.private.ir.answer import describe_answer
        from deepshare.private.remote.client import Server, ask_when_free
        from deepshare.private.transport.tls import tls_of

    expected = None
    if plan is not None:
        from deepshare.sharing.plan import Plan

        expected = Plan.load(plan)
    if pool is not None:
        engine = _engine_of(pool, engine)
    asked = Server(
        address=server,
        tls=None if tls is None else tls_of(tls),
        pool=None if pool is None else pool.absolute(),
        engine=engine,
        network=network,
        insecure=insecure,
    )

    def use(client: "ModelClient") -> None:
        if expected is not None:
            from deepshare.private.api import check_plan

            check_plan(client.offer.program, expected)
        check_out(out, client.offer.program)
        batch = client.offer.about.read(images, fit=fit)
        warn(client.offer.engine)
        if client.offer.program.hides_scores:
            note(f"the server gives {describe_answer(client.offer.program)}, without logits")
        result = client.ask(batch)
        if client.offer.uses_pools and (warning := client.low()):
            note(warning)
        show(result, client.offer.about, [str(path) for path in images], layers, as_json, out)

    ask_when_free(asked, use)


@private.command
def outline(
    run: RunArgument,
    out: Path,
    /,
    *,
    samples: int = 0,
    data_dir: Path | None = None,
    best: Best = False,
    answer: AnswerKind = "logits",
) -> None:
    """Write the public outline of a network for the dealer of gateshare: layers and number format, no weights.

    Args:
        out: File to write.
        samples: Number of training images for calibrating the range of numbers; 0 uses synthetic images that cover the
            range of normalised ones.
        data_dir: Folder of data sets.
    """
    from deepshare.private.api import from_run, training_images
    from deepshare.training.run.folder import run_folder

    if samples < 0:
        raise EngineError(f"{samples} samples: give a number of training images, or 0 for synthetic ones")
    run = run_folder(run)
    program, _ = from_run(run, best=best, answer=answer)
    _preprocessing()[1].write_outline(out, program, training_images(run, samples, data_dir) if samples else None)
    print(f"{out} is public: give it to the dealer for deepshare private deal")


@private.command
def deal(outline: Path, out: Path, /, *, images: int = 100, clients: int = 1) -> None:
    """Deal the randomness of gateshare for a number of images: OUT/server for one party, OUT/client for the other.

    Together with either party the dealer could read everything, so both must trust it. It deals some more lots than
    images, since a client cannot use every lot.

    Args:
        outline: File from private outline.
        out: Folder to write.
        images: Number of images per client.
        clients: Number of clients of the server; several have the folders OUT/client-1, OUT/client-2 ...
    """
    if images < 1 or clients < 1:
        raise EngineError(f"{images} images for {clients} clients: deal for at least one each")
    spare, distance = _preprocessing()[1].deal(outline, out, images=images, clients=clients, told=_progress)
    whose = f"{out}/client to the client" if clients == 1 else f"{out}/client-1 to client-{clients} to the clients"
    print(f"{out}/server goes to the server and {whose}, each for {images:,} images; keep none here")
    print(f"{spare:,} more lots than images, since a client cannot use every lot: too few in one of a million pools")
    print(
        f"statistical distance of the server's views of any two images: below 2^{math.log2(distance):.1f}; of all "
        f"{images:,} images of a client: below 2^{math.log2(distance * images):.1f}"
    )


@private.command
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
    dealer could read everything, so both must trust it.

    Args:
        outline: File from private outline.
        folder: Folder for the dealing and for lots on their way; secret.
        listen: HOST:PORT to listen on.
        tls: Folder with the certificates of the dealer.
        server: Name in the server's certificate; all others are clients.
        level: Number of lots that each client should have.
        images: Number of images that each client may ever ask.
        log_level: debug, info, warning or error.
        log_json: Log a JSON object a line.
    """
    from deepshare.private.remote.dealer import DealerService, Dealership
    from deepshare.private.remote.operation import start_logging
    from deepshare.private.transport.tls import tls_of

    if level < 1 or images < 1:
        raise EngineError(f"a level of {level} for {images} images: give at least one each")
    start_logging(log_level, as_json=log_json)
    service = DealerService(Dealership(folder, outline, level=level, images=images), listen, tls_of(tls), server)
    service.journal.info(f"dealing for {server} and its clients on {service.address}")
    try:
        service.run()
    except KeyboardInterrupt:
        service.journal.info("ended")


@private.command
def keys(
    folder: Path,
    /,
    *,
    host: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    clients: int = 1,
) -> None:
    """Create certificates for a trial, valid for 30 days: FOLDER/server for one party, FOLDER/client for the other.

    Args:
        folder: Folder to write.
        host: Host names and addresses of the server; by default localhost and 127.0.0.1.
        clients: Number of clients; several have the folders FOLDER/client-1, FOLDER/client-2 ..., each with its key.
    """
    from deepshare.private.remote.tls import make_keys

    if clients < 1:
        raise EngineError(f"{clients} clients: make keys for at least one")
    make_keys(folder, host or ["localhost", "127.0.0.1"], clients)
    whose = f"{folder}/client to the client" if clients == 1 else f"{folder}/client-1 ... to the clients"
    print(f"{folder}/server goes to the server and {whose}; give each its folder with --tls")


def _engine_of(pool: Path, engine: str | None) -> str:
    """The engine of a client's pool, which must be the one that was asked for."""
    from deepshare.private.engines.gateshare.preprocessing.pool import pool_engine, pools_in

    found = pool_engine(pools_in(pool, "client", engine if engine == MADE else None)[0][1])
    if engine not in (None, found):
        raise EngineError(f"{pool} is a pool of engine {found}, not {engine}: name that engine, or none")
    return found


def _preprocessing() -> "tuple[str, Preprocessing]":
    """The engine of `outline`, `deal` and `--pool`, and its preprocessing."""
    from deepshare.private.runtime.engine import engine_with_preprocessing

    engine, preprocessing = engine_with_preprocessing()
    return engine.name, preprocessing


def _progress(lots: int, total: int) -> None:
    if lots % 100 == 0:
        note(f"{lots} of {total}")


def note_making(engine: "Engine", program: "Program", images: int, options: Mapping[str, str]) -> None:
    """Print how much the parties will send each other before the images, where there is no dealer."""
    from deepshare.text import byte_size

    if "dealer" in engine.roles(options):
        return
    _, offline = engine.predict(program, images, options)
    if offline.server_bytes and not offline.dealer_bytes:
        sent = byte_size(offline.server_bytes + offline.client_bytes)
        note(f"first the parties make randomness for the images: {sent}, and most of the time")


def _options(provider: str | None) -> Mapping[str, str]:
    return {} if provider is None else {"provider": provider}


def _images(
    run: Path, about: "About", paths: list[Path] | None, samples: int, data_dir: Path | None, fit: bool
) -> tuple[list[str], "Tensor"]:
    if paths:
        return [str(path) for path in paths], about.read(paths, fit=fit)
    from deepshare.private.api import sample_images

    return sample_images(run, samples, data_dir)


def check_out(out: Path | None, program: "Program") -> None:
    """Check before any work that the network segments and that the file can be written."""
    if out is None:
        return
    if len(program.operations[-1].shape) == 1:
        raise EngineError("--out is for segmentation, but this network gives one class per image: omit it")
    check_writable(out)


def show(
    result: "Result", about: "About", names: list[str], layers: bool, as_json: bool, out: Path | None = None
) -> None:
    """Print the classes, with probabilities or fractions of the pixels, and the cost."""
    from deepshare.data.palette import save_labels
    from deepshare.private.cost import cost_dict, cost_table

    if out is not None:
        save_labels(out, result.classes[:, 0])
    found = _pixels(result, about, names) if result.answer.dim() > 2 else _classes(result, about, names)
    if as_json:
        print(json.dumps({"images": found, "cost": cost_dict(result.cost)}))
        return
    width = max(len(entry["image"]) for entry in found)
    for entry in found:
        print(f"{entry['image']:{width}}  {_said(entry)}")
    print()
    print(cost_table(result.cost, layers=layers))
    each = result.cost.seconds / result.cost.images
    error = "" if result.cost.error is None else f"; largest error of a logit {result.cost.error:.1e}"
    many = "1 image" if result.cost.images == 1 else f"{result.cost.images} images, {each:.2f} s each"
    print(f"\n{result.cost.seconds:.2f} s online for {many}{error}")
    if out is not None:
        print(f"classes of the pixels in {out}")


def _said(entry: dict[str, Any]) -> str:
    if "probability" in entry:
        return f"{entry['class']}  {entry['probability']:.1%}"
    if "classes" in entry:
        return ", ".join(entry["classes"])
    return ", ".join(f"{name} {share:.1%}" for name, share in entry["pixels"].items())


def _pixels(result: "Result", about: "About", names: list[str]) -> list[dict[str, Any]]:
    from deepshare.data.palette import class_shares

    found = class_shares(result.classes[:, 0], about.classes)
    return [{"image": name, "pixels": pixels} for name, pixels in zip(names, found, strict=True)]


def _classes(result: "Result", about: "About", names: list[str]) -> list[dict[str, Any]]:
    if result.hides_scores:
        best = [[about.classes[index] for index in indices] for indices in result.classes.tolist()]
        return [{"image": name, "class": some[0], "classes": some} for name, some in zip(names, best, strict=True)]
    likely = result.logits.double().softmax(1).max(1)
    return [
        {"image": name, "class": about.classes[index], "probability": probability}
        for name, probability, index in zip(names, likely.values.tolist(), likely.indices.tolist(), strict=True)
    ]
