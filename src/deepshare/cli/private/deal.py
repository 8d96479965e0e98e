"""`deepshare private outline`, `deal` and `keys`: files to make before a server and its clients run."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from deepshare.cli.options import AnswerKind, Best, ComparisonBits, RunArgument
from deepshare.cli.private.show import note, show_distance
from deepshare.errors import EngineError


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
    from deepshare.private.remote.serve import outline as write_outline

    write_outline(
        run, out, samples=samples, data_dir=data_dir, best=best, answer=answer, comparison_bits=comparison_bits
    )
    print(f"{out} is public: give it to the dealer for deepshare private deal")


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

    spare, distance = deal_pools(
        outline, out, images=images, clients=clients, owners=owner or (), on_progress=_progress
    )
    whose = f"{out}/client to the client" if clients == 1 else f"{out}/client-1 to client-{clients} to the clients"
    print(f"{out}/server goes to the server and {whose}, each for {images:,} images; keep none here")
    print(f"{spare:,} more lots than images, since a client cannot use every lot: too few in one of a million pools")
    show_distance(distance, images, f"{images:,} images of a client")


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
