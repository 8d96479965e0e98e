"""`deepshare private`: a trained network applied to images that its owner never sees."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from deepshare.cli.options import Flag, Json, check_writable
from deepshare.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor

    from deepshare.data.about import About
    from deepshare.private.cost import Result
    from deepshare.private.ir.program import Program
    from deepshare.private.runtime.engine import Engine, Preprocessing

# The engine of `outline`, `deal` and `--pool`: the one with preprocessing by a dealer.
DEALT = "gateshare"

private = App(name="private", help="Run a trained network on images without showing either to the other party.")

Engines = Annotated[str, Parameter(name=["--engine", "-e"], help="crypten, gateshare, spu-cheetah or spu-semi2k.")]
Provider = Annotated[
    str | None,
    Parameter(help="Who makes crypten's random triples: tfp (the server itself, the default) or ttp (a third party)."),
]
Images = Annotated[
    list[Path] | None, Parameter(consume_multiple=True, help="Pictures; without any, test images of the data set.")
]
Fit = Annotated[Flag, Parameter(help="Scale and cut pictures of another size.")]
Best = Annotated[Flag, Parameter(help="Take the weights that were best on the validation images.")]
Layers = Annotated[Flag, Parameter(help="Show what each layer cost.")]
Labels = Annotated[
    Path | None,
    Parameter(name=["--out", "-o"], help="PNG for the classes of the pixels, where the network finds one for each."),
]
TlsFolder = Annotated[
    Path | None, Parameter(name="--tls", help="Folder with certificates of this party: see private keys.")
]
PoolFolder = Annotated[
    Path | None, Parameter(name="--pool", help="Folder of this party with what was dealt beforehand: see private deal.")
]


@private.command
def run(
    run: Path,
    /,
    *,
    engine: Engines = "crypten",
    images: Images = None,
    samples: int = 4,
    data_dir: Path | None = None,
    fit: Fit = False,
    best: Best = False,
    provider: Provider = None,
    out: Labels = None,
    layers: Layers = False,
    as_json: Json = False,
) -> None:
    """Run all parties on this machine, each in a process of its own, and show what they found and what it cost.

    Args:
        run: The folder of a finished run.
        samples: How many test images to take where no pictures are given.
        data_dir: Where data sets are.
    """
    from deepshare.private.api import run as run_program
    from deepshare.private.run_folder import from_run
    from deepshare.private.runtime.engine import check_installed, find_engine

    chosen = find_engine(engine)
    check_installed(chosen)
    program, about = from_run(run, best=best)
    check_out(out, program)
    names, batch = _images(run, about, images, samples, data_dir, fit)
    warn(chosen)
    result = run_program(program, batch, engine, _options(provider))
    show(result, about, names, layers, as_json, out)


@private.command
def serve(
    run: Path,
    /,
    *,
    engine: Engines = "crypten",
    host: str = "127.0.0.1",
    port: int = 8443,
    tls: TlsFolder = None,
    pool: PoolFolder = None,
    best: Best = False,
) -> None:
    """Answer clients on other machines until interrupted; they never see the weights.

    Who could see the images depends on the engine: gateshare, with a dealer's pools, and spu-cheetah hide them from a
    curious server; crypten and spu-semi2k are for measuring.

    Args:
        run: The folder of a finished run.
        host: Address to listen on; 0.0.0.0 for all.
        port: Port to listen on; engines open further ports of their own, all but gateshare on both machines.
    """
    from deepshare.private.remote.server import ModelServer
    from deepshare.private.remote.tls import tls_of
    from deepshare.private.run_folder import from_run
    from deepshare.private.runtime.engine import check_installed, find_engine

    chosen = find_engine(engine)
    check_installed(chosen)
    certificates = None if tls is None else tls_of(tls)
    options: Mapping[str, str] = {}
    if pool is not None:
        if chosen.preprocessing is None:
            raise EngineError(f"--pool is for engine {DEALT} and this is {engine}: add --engine {DEALT}")
        options = chosen.preprocessing.options
    program, about = from_run(run, best=best)
    chosen.check(program, options)
    warn(chosen)
    if certificates is None and host not in ("127.0.0.1", "::1", "localhost"):
        note("without --tls anybody on the way can listen and ask")
    elif certificates is not None and not chosen.encrypts:
        note(f"--tls protects what the parties agree on; engine {engine} sends its shares without it")
    server = ModelServer(
        engine=chosen, options=options, program=program, about=about, tls=certificates, log=note, pool=pool
    )
    with server.listen(host, port) as listening:
        note(f"serving {run} on {host}:{port} with {engine}: {program.comparisons:,} gates an image; Ctrl-C ends it")
        try:
            listening.serve_forever()
        except KeyboardInterrupt:
            note("ended")


@private.command
def ask(
    images: Annotated[list[Path], Parameter(help="Pictures.")],
    /,
    *,
    server: str,
    engine: Annotated[str | None, Parameter(name=["--engine", "-e"])] = None,
    tls: TlsFolder = None,
    pool: PoolFolder = None,
    fit: Fit = False,
    plan: Path | None = None,
    out: Labels = None,
    layers: Layers = False,
    as_json: Json = False,
) -> None:
    """Ask a server for the classes of pictures that it never sees.

    Args:
        server: HOST:PORT of deepshare private serve.
        engine: The engine that is trusted; a server with another one is refused. Without it the server's is taken.
        plan: A plan file; a server with another plan is refused.
    """
    from deepshare.private.remote.client import connected
    from deepshare.private.remote.tls import tls_of
    from deepshare.private.run_folder import check_plan
    from deepshare.sharing.plan import Plan

    expected = None if plan is None else Plan.load(plan)
    if pool is not None:
        _preprocessing().check_pool(pool, "client")
    with connected(server, None if tls is None else tls_of(tls), pool) as client:
        if engine not in (None, client.offer.engine.name):
            raise EngineError(f"{server} uses engine {client.offer.engine.name}, not {engine}: nothing was sent to it")
        if expected is not None:
            check_plan(client.offer.program, expected)
        check_out(out, client.offer.program)
        batch = client.offer.about.read(images, fit=fit)
        warn(client.offer.engine)
        result = client.ask(batch)
        show(result, client.offer.about, [str(path) for path in images], layers, as_json, out)


@private.command
def outline(run: Path, out: Path, /, *, samples: int = 0, data_dir: Path | None = None, best: Best = False) -> None:
    """Write what a dealer has to know of a network for engine gateshare: its outline and number format, no weights.

    Args:
        run: The folder of a finished run.
        out: File to write.
        samples: How many training images to measure the range of numbers on; 0 takes synthetic ones, which reach as
            far as normalised images do.
        data_dir: Where data sets are.
    """
    from deepshare.private.run_folder import from_run, training_images

    if samples < 0:
        raise EngineError(f"{samples} samples: give how many training images to measure on, or 0 for synthetic ones")
    program, _ = from_run(run, best=best)
    _preprocessing().write_outline(out, program, training_images(run, samples, data_dir) if samples else None)
    print(f"{out} is public: give it to the dealer, for deepshare private deal")


@private.command
def deal(outline: Path, out: Path, /, *, images: int = 100, clients: int = 1) -> None:
    """Prepare random numbers for some images of engine gateshare: OUT/server for one party, OUT/client for the other.

    Who deals could read everything together with either party: it has to be somebody whom both trust. A few lots more
    than images are dealt, since a client cannot use every lot.

    Args:
        outline: The file that private outline wrote.
        out: Folder to write.
        images: How many images can be asked with it, by each client.
        clients: For how many clients of the same server; the folders of several are OUT/client-1, OUT/client-2 ...
    """
    if images < 1 or clients < 1:
        raise EngineError(f"{images} images for {clients} clients: deal for at least one each")
    spare = _preprocessing().deal(outline, out, images=images, clients=clients, told=_progress)
    whose = f"{out}/client to the client" if clients == 1 else f"{out}/client-1 to client-{clients} to the clients"
    print(f"{out}/server goes to the server and {whose}, each for {images:,} images; keep none here")
    print(f"{spare:,} lots more than images, as a client cannot use every lot: too few in one of a million pools")


@private.command
def keys(folder: Path, /, *, host: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None) -> None:
    """Make certificates for a trial, for 30 days: FOLDER/server for one party, FOLDER/client for the other.

    Args:
        folder: Where to write them.
        host: Names and addresses that clients will reach the server by; localhost and 127.0.0.1 by default.
    """
    from deepshare.private.remote.tls import make_keys

    make_keys(folder, host or ["localhost", "127.0.0.1"])
    print(f"{folder}/server goes to the server and {folder}/client to the client; give each its folder with --tls")


def _preprocessing() -> "Preprocessing":
    from deepshare.private.runtime.engine import find_engine

    preprocessing = find_engine(DEALT).preprocessing
    if preprocessing is None:
        raise AssertionError(DEALT)
    return preprocessing


def _progress(lots: int, total: int) -> None:
    if lots % 100 == 0:
        note(f"{lots} of {total}")


def note(text: str) -> None:
    """Say something beside the result."""
    print(text, file=sys.stderr, flush=True)


def warn(engine: "Engine") -> None:
    """Say what an engine does not protect."""
    note(f"{engine.name}: {engine.trust}")


def _options(provider: str | None) -> Mapping[str, str]:
    return {} if provider is None else {"provider": provider}


def _images(
    run: Path, about: "About", paths: list[Path] | None, samples: int, data_dir: Path | None, fit: bool
) -> tuple[list[str], "Tensor"]:
    if paths:
        return [str(path) for path in paths], about.read(paths, fit=fit)
    from deepshare.private.run_folder import sample_images

    return sample_images(run, samples, data_dir)


def check_out(out: Path | None, program: "Program") -> None:
    """Find out before any work whether there will be classes of pixels, and whether they can be written."""
    if out is None:
        return
    if len(program.operations[-1].shape) == 1:
        raise EngineError(
            "--out is for classes of pixels, and this network finds one class for a picture: leave it out"
        )
    check_writable(out)


def show(
    result: "Result", about: "About", names: list[str], layers: bool, as_json: bool, out: Path | None = None
) -> None:
    """Print classes with their probabilities, or with their shares of the pixels, and the cost."""
    from deepshare.private.formatting import cost_dict, cost_table, save_labels

    if out is not None:
        save_labels(out, result.logits)
    found = _pixels(result, about, names) if result.logits.dim() > 2 else _classes(result, about, names)
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
        print(f"the classes of the pixels are drawn in {out}")


def _said(entry: dict[str, Any]) -> str:
    if "class" in entry:
        return f"{entry['class']}  {entry['probability']:.1%}"
    return ", ".join(f"{name} {share:.1%}" for name, share in entry["pixels"].items())


def _pixels(result: "Result", about: "About", names: list[str]) -> list[dict[str, Any]]:
    from deepshare.private.formatting import class_shares

    found = class_shares(result.logits, about.classes)
    return [{"image": name, "pixels": pixels} for name, pixels in zip(names, found, strict=True)]


def _classes(result: "Result", about: "About", names: list[str]) -> list[dict[str, Any]]:
    likely = result.logits.double().softmax(1).max(1)
    return [
        {"image": name, "class": about.classes[index], "probability": probability}
        for name, probability, index in zip(names, likely.values.tolist(), likely.indices.tolist(), strict=True)
    ]
