"""`deepshare private`: private inference with a trained network."""

from cyclopts import App
from cyclopts.config import Env, Toml

from deepshare.cli.private.deal import deal, keys, outline
from deepshare.cli.private.pool import pool, prepare
from deepshare.cli.private.run import ask, run
from deepshare.cli.private.serve import dealer, serve
from deepshare.cli.private.ui import ui

private = App(name="private", help="Private inference: the server keeps its weights, the client its images.")

private.command(run)
private.command(ask)
private.command(outline)
private.command(deal)
private.command(keys)
private.command(pool)
private.command(ui)
private.command(prepare)
# Flags may be given as variables, DEEPSHARE_PRIVATE_SERVE_PORT, or under [private.serve] of this file.
CONFIGURATION = "deepshare.toml"
CONFIGURED = (Env("DEEPSHARE_"), Toml(CONFIGURATION))
private.command(serve, config=CONFIGURED)
private.command(dealer, config=CONFIGURED)
