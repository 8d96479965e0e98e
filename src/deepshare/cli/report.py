"""`deepshare report`: a self-contained page about finished runs."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from deepshare.cli.options import Json, check_writable


def report(
    runs: Annotated[list[Path], Parameter(help="Folders of finished runs, or names that deepshare networks lists.")],
    /,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"])] = Path("report.html"),
    data_dir: Path | None = None,
    as_json: Json = False,
) -> None:
    """Write one page about finished runs: a single self-contained HTML file.

    Shows the score against the gates with the paper's results, training curves,
    the plan as a picture of the network, the gate budget, alpha over beta, the
    cost of private inference, and sample predictions. Several runs are first
    shown side by side.

    Args:
        out: The HTML file.
        data_dir: Folder of the data sets, for sample predictions.
    """
    check_writable(out)
    from deepshare.study.report import write

    read = write(runs, out, data_dir)
    print(json.dumps({"out": str(out), "runs": [run.to_dict() for run in read]}) if as_json else f"written to {out}")
