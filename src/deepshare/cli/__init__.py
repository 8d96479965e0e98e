"""Command line: one file per verb, and the only room that prints.

A verb is a function with a Google docstring, registered below with `app.command(...)`. Verbs import torch, and modules
that import it, inside the function, so that `--help` is fast.
"""

import errno
import os
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from tomllib import TOMLDecodeError

from cyclopts import App, CycloptsError

from deepshare import __version__
from deepshare.cli.compare import compare
from deepshare.cli.evaluate import evaluate
from deepshare.cli.export import export
from deepshare.cli.inspect import inspect
from deepshare.cli.networks import networks
from deepshare.cli.plan import plan
from deepshare.cli.private import CONFIGURATION, private
from deepshare.cli.recipes import recipes
from deepshare.cli.report import report
from deepshare.cli.study import study
from deepshare.cli.train import train
from deepshare.errors import DeepShareError

# Required by the package, and left out where it is installed for `private ask` alone.
NOT_FOR_CLIENTS = {"kornia", "lightning_fabric", "matplotlib", "safetensors"}

app = App(
    name="deepshare",
    version=f"deepshare {__version__}",
    help="Share the ReLU gates of a network across channels and layers, within a budget.",
    help_format="plaintext",
    exit_on_error=False,
    print_error=False,
    result_action="return_value",
)
app.command(inspect)
app.command(plan)
app.command(export)
app.command(train)
app.command(evaluate, name="eval")
app.command(recipes)
app.command(networks)
app.command(private)
app.command(compare)
app.command(study)
app.command(report, usage="Usage: deepshare report [OPTIONS] RUN [RUN...]")
app.register_install_completion_command(help="Install completion for the shell that is in use: bash, zsh or fish.")
# At the end of a verb's --help, which lists every flag and shows none in use.
EXAMPLES = {
    "inspect": ["timm:resnet50", "resnet18 --json"],
    "plan": [
        "resnet18 --budget 6000 --out plan.json",
        "torchvision:resnet50 --budget 1% --maxpool shared --groups stage",
        "resnet18 --budget 6000 --cost gateshare gateshare-2pc spu-cheetah",
    ],
    "export": ["resnet18 --plan plan.json --out shared.onnx", "digits-resnet10-192 --out digits.onnx"],
    "train": [
        "-r digits --out runs/digits",
        "-r digits --out runs/longer --gelu.epochs 20",
        "-r cifar100-small --data-dir DATA --dry-run",
    ],
    "eval": ["runs/digits", "digits-resnet10-192"],
    "recipes": ["", "digits"],
    "networks": ["", "digits-resnet10-192"],
    "compare": ["--study digits", "--study fair --list", "--study fair --show"],
    "report": ["runs/digits -o report.html"],
    "private": ["run digits-resnet10-192 --samples 8", "ui"],
    "private run": ["digits-resnet10-192 --samples 8", "runs/digits -e crypten --layers"],
    "private keys": ["KEYS --host HOST"],
    "private outline": ["digits-resnet10-192 network.json"],
    "private deal": ["network.json POOLS --images 100"],
    "private serve": ["RUN --pool POOLS/server --host 0.0.0.0 --tls KEYS/server"],
    "private ask": ["a.png b.png --server HOST:8443 --pool POOLS/client --tls KEYS/client"],
    "private prepare": ["--server HOST:8443 --pool MINE --images 100 --tls KEYS/client"],
    "private dealer": ["network.json DEALING --tls KEYS/dealer --level 100"],
    "private pool": ["status POOLS", "add POOLS/server NEW/server"],
    "private pool status": ["POOLS", "POOLS/client --json"],
    "private pool add": ["POOLS/server NEW/server"],
    "private pool fill": [
        "POOLS/client --dealer HOST:8444 --tls KEYS/client",
        "POOLS/server --server --dealer HOST:8444 --tls KEYS/server",
    ],
    "private ui": ["", "--server HOST:8443 --pool POOLS/client --tls KEYS/client"],
    "study": ["dimension runs/digits", "xor"],
    "study xor": ["", "--out results/xor"],
    "study dimension": ["runs/digits"],
    "study affine": ["runs/digits", "digits-resnet10-192"],
    "study boundaries": ["", "--out results/boundaries"],
    "study scenes": ["camvid-deeplabv3w05-200280 --data-dir DATA --samples 3"],
    "study published": ["", "--out results/published"],
}


def _shown(command: str) -> str:
    """Break a command into lines of at most 80 characters that a shell reads as one."""
    lines = textwrap.wrap(command, 74, break_long_words=False, break_on_hyphens=False)
    return "  " + " \\\n    ".join(lines)


for verb, uses in EXAMPLES.items():
    named = app
    for word in verb.split():
        named = named[word]
    named.help_epilogue = "\n".join(["Examples:", *(_shown(f"deepshare {verb} {use}") for use in uses)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; a user's error becomes one line on stderr and exit code 2."""
    try:
        _check_folder()
        app(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f" for {error.filename}" if error.filename else ""
        print(f"deepshare: the disk is full{where}: free some space, and run the command again", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in NOT_FOR_CLIENTS:
            raise
        cure = "this is an installation for clients (--no-deps): pip install deepshare"
        print(f"deepshare: {error.name} is not installed, {cure}", file=sys.stderr)
        sys.exit(2)
    except (CycloptsError, DeepShareError) as error:
        if getattr(error, "reported_elsewhere", False):
            sys.exit(0)  # the first process reports it; an exit code of ours would make the launcher kill that one
        where = f"{CONFIGURATION}: " if isinstance(error.__cause__, TOMLDecodeError | UnicodeDecodeError) else ""
        print(f"deepshare: {where}{' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


def _check_folder() -> None:
    """Refuse a working folder that is gone: files are looked for there, configuration among them."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise DeepShareError("the folder that you are in was deleted: change to another") from None
