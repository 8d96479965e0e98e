"""`deepshare private run` and `ask`: classes of images, between parties on this machine or with a server."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from deepshare.cli.options import (
    DEFAULT_ENGINE,
    AnswerKind,
    Best,
    ComparisonBits,
    Engines,
    Flag,
    Json,
    PoolFolder,
    RunArgument,
    TlsFolder,
    importing,
)
from deepshare.cli.private.show import check_out, note, note_answer, show, warn

if TYPE_CHECKING:
    from torch import Tensor

    from deepshare.data.images import About
    from deepshare.private.ir.program import Program
    from deepshare.private.remote.client import Offer
    from deepshare.private.runtime.engine import Engine

Provider = Annotated[
    str | None,
    Parameter(help="Source of crypten's triples: tfp (the server, the default) or ttp (a third party)."),
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
