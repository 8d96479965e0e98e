"""`deepshare compare`: the methods of a study, run one after the other or as jobs, and their results so far."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from deepshare.cli.options import Flag, Json
from deepshare.errors import DeepShareError, RecipeError

if TYPE_CHECKING:
    from deepshare.study.compare.outcome import Outcome
    from deepshare.study.compare.queue import Limits, Queue

Launch = Literal["local", "slurm"]


def compare(
    *,
    study: str,
    show: Flag = False,
    show_list: Annotated[Flag, Parameter(name="--list")] = False,
    dry_run: Flag = False,
    only: Annotated[tuple[str, ...], Parameter(negative="", show_default=False, consume_multiple=True)] = (),
    minutes: float | None = None,
    limit: int | None = None,
    launch: Launch | None = None,
    at_once: int | None = None,
    partition: str | None = None,
    hours: float | None = None,
    gpus: int | None = None,
    cores: int | None = None,
    teacher: Path | None = None,
    precision: Literal["32-true", "bf16-mixed"] = "32-true",
    out: Path | None = None,
    work: Path | None = None,
    data_dir: Path | None = None,
    download: Flag = False,
    as_json: Json = False,
) -> None:
    """Compare methods on one network and one data set: run what a study still has to run, and show its results.

    Runs go one after the other; each result is one JSON file. Started again
    after a kill, it goes on where it was, and skips what has a result. After
    every run it writes the page README.md and the plots beside the results.

    With --launch, runs are jobs of their own, behind that of their teacher:
    on this machine, which it waits for, or on a cluster with SLURM, which it
    does not. What else sbatch should know is given as it reads it from the
    environment, such as SBATCH_ACCOUNT.

    Args:
        study: The name of a study (small, fair, paper, digits) or a TOML file.
        show: Run nothing: show the results so far (--json: as JSON), and write the page and the plots.
        show_list: Run nothing: list which runs are finished, running and open.
        dry_run: Train one batch of every phase of every method, and keep nothing.
        only: Run these methods only, and the teacher: --only A B.
        minutes: Start no run that would probably not be finished within so many minutes from now.
        limit: Do at most so many runs.
        launch: Start runs as jobs: on this machine (local), or on a cluster (slurm).
        at_once: Jobs at the same time; by default two on this machine, and as many as it likes on a cluster.
        partition: Of the cluster, for --launch slurm.
        hours: Time limit of a job, after which it is queued again and goes on, for --launch slurm; by default 24.
        gpus: GPUs of a job, 0 or 1, for --launch slurm; by default 1.
        cores: CPU cores of a job, for --launch slurm; by default 4.
        teacher: The run folder of a trained plain network to learn from; by default it is trained first.
        precision: Of the forward and backward pass; bf16-mixed is faster where the processor has bfloat16.
        out: Folder of results, and of the teacher's weights; by default results/compare/STUDY.
        work: Folder of run folders; by default runs/compare/STUDY.
        data_dir: Where data sets are.
        download: Fetch a data set that is not there.
    """
    if show + show_list + dry_run > 1:
        raise DeepShareError("give only one of --show, --list and --dry-run")
    for flag, value in (("limit", limit), ("minutes", minutes)):
        if value is not None and value <= 0:
            raise DeepShareError(f"--{flag} {value:g}: give more than 0")
    wishes = {"partition": partition, "hours": hours, "gpus": gpus, "cores": cores}
    check_launch(launch, minutes, at_once, wishes, idle=show or show_list or dry_run)
    from deepshare.private.runtime.engine import find_engine
    from deepshare.study.compare.queue import Limits, Queue
    from deepshare.study.compare.recipes import load_study
    from deepshare.study.compare.run import Place
    from deepshare.text import nearest

    chosen = load_study(study)
    find_engine(chosen.engine)
    unknown = [method for method in only if method not in chosen.methods]
    if unknown:
        known = f"{nearest(unknown[0], list(chosen.methods))} (there are {', '.join(chosen.methods)})"
        raise RecipeError(f"--only {unknown[0]}: the study {chosen.name} has no such method{known}")
    folders = work or Path("runs/compare") / chosen.name, out or Path("results/compare") / chosen.name
    queue = Queue(chosen, Place(*folders, data_dir, download, teacher, precision))
    if show_list:
        list_runs(queue, only, as_json)
    elif dry_run:
        try_all(queue, only, as_json)
    else:
        limits = Limits(minutes, limit, only)
        if launch == "slurm":
            submit(queue, limits, at_once, wishes)
        elif not show:
            run_queue(queue, limits, at_once or 2 if launch else None)
        show_results(queue, as_json)


def check_launch(
    launch: Launch | None, minutes: float | None, at_once: int | None, wishes: dict[str, Any], *, idle: bool
) -> None:
    """See whether flags go together.

    Raises:
        DeepShareError: Some do not.
    """
    given = [flag for flag, value in wishes.items() if value is not None]
    if given and launch != "slurm":
        raise DeepShareError(f"--{given[0]} is for --launch slurm")
    if at_once is not None and launch is None:
        raise DeepShareError("--at-once is for --launch local and --launch slurm")
    if launch and idle:
        raise DeepShareError("--launch runs a study: it does not go with --show, --list or --dry-run")
    if launch and minutes is not None:
        raise DeepShareError("--minutes is for runs one after the other: with --launch give --limit")
    least = {"at-once": (at_once, 1), "hours": (wishes["hours"], 1e-9), "cores": (wishes["cores"], 1)}
    wrong = [flag for flag, (value, low) in least.items() if value is not None and value < low]
    if wrong:
        raise DeepShareError(f"--{wrong[0]}: give more than 0")
    if wishes["gpus"] not in (None, 0, 1):
        raise DeepShareError(f"--gpus {wishes['gpus']}: a run is on one GPU (1) or on none (0)")


def run_queue(queue: "Queue", limits: "Limits", at_once: int | None) -> None:
    """Run what is open, one after the other or several at a time, telling on stderr."""
    from deepshare.cli.progress import make_reporter
    from deepshare.study.compare.launch.local import run_local
    from deepshare.study.compare.results import save

    def tell(outcome: "Outcome") -> None:
        save(queue.study, queue.outcomes(), queue.out)
        print(f"{outcome.job.name}: {describe(outcome)}", file=sys.stderr, flush=True)

    try:
        if at_once is None:
            end = queue.run(limits, make_reporter, tell)
        else:
            end = run_local(queue, limits, at_once, make_reporter, tell)
    except KeyboardInterrupt:
        print("stopped: the same command goes on after the last epoch", file=sys.stderr)
        raise
    if end == "stopped":
        print("stopped before the next run, as asked; the same command goes on", file=sys.stderr)
    elif end == "elsewhere":
        print("other processes are at what is left", file=sys.stderr)


def submit(queue: "Queue", limits: "Limits", at_once: int | None, wishes: dict[str, Any]) -> None:
    """Submit what is open to SLURM, telling on stderr."""
    from deepshare.cli.progress import make_reporter
    from deepshare.study.compare.launch import slurm

    given = {flag: value for flag, value in wishes.items() if value is not None}
    ids = slurm.submit(queue, limits, slurm.Wishes(**given, at_once=at_once), make_reporter)
    for job, number in ids.items():
        print(f"{job.name}: job {number}", file=sys.stderr)
    more = "; when they are finished, the same command submits what is left" if ids else ""
    print(f"{len(ids)} runs submitted{more}", file=sys.stderr, flush=True)


def show_results(queue: "Queue", as_json: bool) -> None:
    """Print the results so far, and write the page and the plots."""
    from deepshare.study.compare.page import as_text, tables
    from deepshare.study.compare.queue import make_folder
    from deepshare.study.compare.results import save

    outcomes = queue.outcomes()
    if outcomes:
        make_folder(queue.out, "--out")
        save(queue.study, outcomes, queue.out)
    if as_json:
        found = [row.to_dict() for _, rows in tables(queue.study, outcomes) for row in rows]
        print(json.dumps({"study": queue.study.name, "rows": found}, indent=1))
    else:
        written = f"\n\nwritten to {queue.out}/README.md" if outcomes else ""
        print(f"{as_text(queue.study, outcomes)}{written}")


def list_runs(queue: "Queue", only: tuple[str, ...], as_json: bool) -> None:
    """Print what has become of every run, or of those of some methods."""
    from deepshare.study.compare.page import progress
    from deepshare.text import table

    states = [state for state in queue.states() if not only or state[0].method in only]
    if as_json:
        print(json.dumps([{"run": job.name, "state": state} for job, state, _ in states], indent=1))
        return
    rows = [(job.name, state, describe(outcome) if outcome else "") for job, state, outcome in states]
    known = queue.outcomes()
    left = sum(queue.minutes(job, known) for job, _, outcome in states if outcome is None)
    print(table(("run", "state", ""), rows, "<<<"))
    print(f"{progress(queue.study, known)} What is left takes up to {left / 60:.1f} h, one after the other.")


def try_all(queue: "Queue", only: tuple[str, ...], as_json: bool) -> None:
    """Train one batch of everything, and print what can be run."""
    from deepshare.study.compare.jobs import kinds
    from deepshare.study.compare.run import dry_run

    found: list[dict[str, Any]] = []
    for job in kinds(queue.study):
        if only and job.method not in only:
            continue
        reason = dry_run(queue.study, job, queue.place)
        found.append({"run": job.name, "refused": reason})
        if not as_json:
            print(f"{job.name}: {reason or 'every phase runs'}", flush=True)
    if as_json:
        print(json.dumps(found, indent=1))


def describe(outcome: "Outcome") -> str:
    """An outcome in a few words."""
    from deepshare.study.compare.rows import took

    if outcome.run is None:
        return f"no result: {outcome.refused}"
    return f"{outcome.run.test:.2f}% with {outcome.run.gates:,} gates in {took(outcome.run.seconds)}"
