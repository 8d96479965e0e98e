"""`deepshare networks`: trained networks by name."""

import json
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from deepshare.cli.options import Json, terminal_width


def networks(
    name: Annotated[str | None, Parameter(help="Show the card of this one.")] = None, /, *, as_json: Json = False
) -> None:
    """List the trained networks of the repository: gates, accuracy, size, how trained.

    A name stands for a run folder in eval, export, report and private, and in
    deepshare.load. Weights are in the repository, not in the package: elsewhere
    set DEEPSHARE_NETWORKS to the folder results of a clone.
    """
    from deepshare.training.run.networks import as_table, card, find, names

    found = [find(known) for known in names()] if name is None else [find(name)]
    if as_json:
        entries = [asdict(network) for network in found]
        print(json.dumps(entries if name is None else entries[0], indent=1))
    else:
        print(as_table(found, terminal_width()) if name is None else card(found[0]), end="\n" if name is None else "")
