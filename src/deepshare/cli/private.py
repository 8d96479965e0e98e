"""`deepshare private`: private inference with a trained network."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from cyclopts.config import Env, Toml

from deepshare.cli.options import (
    DEFAULT_ENGINE,
    AnswerKind,
    Best,
    Engines,
    Flag,
    Json,
    PoolFolder,
    RunArgument,
    TlsFolder,
    importing,
)
from deepshare.cli.private_pool import pool as pool_commands
from deepshare.cli.private_pool import prepare
from deepshare.cli.private_serve import dealer, serve
from deepshare.cli.private_show import check_out, note, note_answer, show, warn
from deepshare.cli.private_ui import ui
from deepshare.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor

    from deepshare.data.images import About
    from deepshare.private.ir.program import Program
    from deepshare.private.remote.client import Offer
    from deepshare.private.runtime.engine import Engine

private = App(name="private", help="Private inference: the server keeps its weights, the client its images.")

private.command(pool_commands)
private.command(ui)
private.command(prepare)
# Flags may be given as variables, DEEPSHARE_PRIVATE_SERVE_PORT, or under [private.serve] of this file.
CONFIGURED = (Env("DEEPSHARE_"), Toml("deepshare.toml"))
private.command(serve, config=CONFIGURED)
private.command(dealer, config=CONFIGURED)

Provider = Annotated[
    str | None,
    Parameter(help="Source of crypten's triples: tfp (the server, the default) or ttp (a third party)."),
]
ComparisonBits = Annotated[
    str | None,
    Parameter(
        help="Bits of a comparison of gateshare, by default all, 32 or more: a number, or calibrated for as many as "
        "leave about one gate in 40,000 wrong at the most. Fewer bits mean smaller keys and faster gates."
    ),
]
Images = Annotated[
    list[Path] | None, Parameter(consume_multiple=True, help="Image files; by default test images of the data set.")
]
Fit = Annotated[Flag, Parameter(help="Resize and crop images of another size.")]
Layers = Annotated[Flag, Parameter(help="Show the cost of each layer.")]
Labels = Annotated[
    Path | None,
    Parameter(name=["--out", "-o"], help="PNG for the classes of the pixels, for a segmentation network."),
]


@private.command
def run(
    run: RunArgument,
    /,
    *,
    engine: Engines = DEFAULT_ENGINE,
    images: Images = None,
    samples: int = 4,
    data_dir: Path | None = None,
    fit: Fit = False,
    best: Best = False,
    provider: Provider = None,
    comparison_bits: ComparisonBits = None,
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
    options = _options(provider, comparison_bits)
    chosen.check(program, options)
    note_making(chosen, program, len(batch), options)
    result = run_program(program, batch, engine, options)
    show(result, about.classes, names, layers, as_json, out)


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
    with importing(lean=pool is not None and plan is None):  # other engines, and plans, may need all of torch
        from deepshare.private.remote.ask import ask as ask_server

    expected = None
    if plan is not None:
        from deepshare.sharing.plan import Plan

        expected = Plan.load(plan)

    def see(offer: "Offer") -> None:
        check_out(out, offer.program)
        warn(offer.engine)
        note_answer(offer.program)

    result = ask_server(
        images,
        server,
        engine=engine,
        network=network,
        tls=tls,
        pool=pool,
        insecure=insecure,
        fit=fit,
        plan=expected,
        see=see,
        warn=note,
    )
    show(result, result.class_names, [str(path) for path in images], layers, as_json, out)


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
    comparison_bits: ComparisonBits = None,
) -> None:
    """Write the public outline of a network for the dealer of gateshare: layers and number format, no weights.

    Args:
        out: File to write.
        samples: Number of training images for calibrating the range of numbers; 0 uses synthetic images that cover the
            range of normalised ones.
        data_dir: Folder of data sets.
    """
    from deepshare.private.engines.gateshare.fixedpoint import comparison_bits_of
    from deepshare.private.remote.serve import outline as write_outline

    bits = None if comparison_bits is None else comparison_bits_of(comparison_bits)
    write_outline(run, out, samples=samples, data_dir=data_dir, best=best, answer=answer, comparison_bits=bits)
    print(f"{out} is public: give it to the dealer for deepshare private deal")


@private.command
def deal(
    outline: Path,
    out: Path,
    /,
    *,
    images: int = 100,
    clients: int = 1,
    owner: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
) -> None:
    """Deal the randomness of gateshare for a number of images: OUT/server for one party, OUT/client for the other.

    Together with either party the dealer could read everything, so both must trust it. It deals some more lots than
    images, since a client cannot use every lot.

    Args:
        outline: File from private outline.
        out: Folder to write.
        images: Number of images per client.
        clients: Number of clients of the server; several have the folders OUT/client-1, OUT/client-2 ...
        owner: Names in the clients' certificates, in their order: the server refuses their lots from others. By default
            whoever has a pool may use it.
    """
    from deepshare.private.remote.serve import deal as deal_pools

    spare, distance = deal_pools(outline, out, images=images, clients=clients, owners=owner or (), told=_progress)
    whose = f"{out}/client to the client" if clients == 1 else f"{out}/client-1 to client-{clients} to the clients"
    print(f"{out}/server goes to the server and {whose}, each for {images:,} images; keep none here")
    print(f"{spare:,} more lots than images, since a client cannot use every lot: too few in one of a million pools")
    print(
        f"statistical distance of the server's views of any two images: below 2^{math.log2(distance):.1f}; of all "
        f"{images:,} images of a client: below 2^{math.log2(distance * images):.1f}"
    )


@private.command
def keys(
    folder: Path,
    /,
    *,
    host: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    clients: int = 1,
) -> None:
    """Create certificates for a trial, valid for 30 days: FOLDER/server, FOLDER/client and, if one runs, FOLDER/dealer.

    Args:
        folder: Folder to write.
        host: Host names and addresses of the server and the dealer; by default localhost and 127.0.0.1.
        clients: Number of clients; several have the folders FOLDER/client-1, FOLDER/client-2 ..., each with its key.
    """
    from deepshare.private.remote.tls import make_keys

    if clients < 1:
        raise EngineError(f"{clients} clients: make keys for at least one")
    make_keys(folder, host or ["localhost", "127.0.0.1"], clients)
    whose = f"{folder}/client to the client" if clients == 1 else f"{folder}/client-1 ... to the clients"
    print(f"{folder}/server goes to the server and {whose}; give each its folder with --tls")
    print(f"{folder}/dealer is for a dealer that runs (private dealer)")


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


def _options(provider: str | None, comparison_bits: str | None) -> Mapping[str, str]:
    given = {"provider": provider, "comparison_bits": comparison_bits}
    return {name: value for name, value in given.items() if value is not None}


def _images(
    run: Path, about: "About", paths: list[Path] | None, samples: int, data_dir: Path | None, fit: bool
) -> tuple[list[str], "Tensor"]:
    if paths:
        return [str(path) for path in paths], about.read(paths, fit=fit)
    from deepshare.private.api import sample_images

    return sample_images(run, samples, data_dir)
