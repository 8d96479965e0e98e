"""`deepshare compare`: a study of several methods, run in sequence or as jobs, and its results."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from deepshare.cli.options import Flag, Json, terminal_width
from deepshare.errors import DeepShareError, RecipeError

if TYPE_CHECKING:
    from deepshare.study.compare.outcome import RunOutcome
    from deepshare.study.compare.runner import Limits, Runner

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
    compile: Flag = False,
    out: Path | None = None,
    work: Path | None = None,
    data_dir: Path | None = None,
    download: Flag = False,
    as_json: Json = False,
) -> None:
    """Compare methods on one network and one data set: execute the open runs of a study and show its results.

    Runs are executed in sequence; each result is one JSON file. Started again
    after a kill, it resumes and skips finished runs. After every run it
    writes the page README.md and the plots next to the results.

    With --launch, runs are separate jobs that wait for their teacher: on this
    machine, until all have ended, or on a SLURM cluster, without waiting.
    sbatch reads further options from the environment, such as
    SBATCH_ACCOUNT.

    Args:
        study: The name of a study (small, fair, pools, paper, digits) or a TOML file.
        show: Run nothing; show the results so far (--json: as JSON) and write the page and the plots.
        show_list: Run nothing; list finished, running and open runs.
        dry_run: Train one batch of every phase of every method and write nothing.
        only: Run only these methods and the teacher: --only A B.
        minutes: Start no run that is not expected to finish within this many minutes from now.
        limit: Maximum number of runs.
        launch: Start runs as jobs: on this machine (local), or on a cluster (slurm).
        at_once: Maximum number of concurrent jobs; by default two on this machine, unlimited on a cluster.
        partition: Partition of the cluster, for --launch slurm.
        hours: Time limit of a job, which is then requeued and resumes, for --launch slurm; by default 24.
        gpus: GPUs per job, 0 or 1, for --launch slurm; by default 1.
        cores: CPU cores per job, for --launch slurm; by default 4.
        teacher: Run folder of a trained plain network to use as the teacher; by default it is trained first.
        precision: Precision of the forward and backward pass; bf16-mixed is faster on processors with bfloat16.
        compile: Compile the networks first: minutes per run, and then shorter epochs.
        out: Folder of the results and the teacher's weights; by default results/compare/STUDY.
        work: Folder of the run folders; by default runs/compare/STUDY.
        data_dir: Folder of data sets.
        download: Download a missing data set.
    """
    if show + show_list + dry_run > 1:
        raise DeepShareError("give only one of --show, --list and --dry-run")
    for flag, value in (("limit", limit), ("minutes", minutes)):
        if value is not None and value <= 0:
            raise DeepShareError(f"--{flag} {value:g}: give more than 0")
    resources = {"partition": partition, "hours": hours, "gpus": gpus, "cores": cores}
    check_launch(launch, minutes, at_once, resources, idle=show or show_list or dry_run)
    from deepshare.private.runtime.engine import find_engine
    from deepshare.study.compare.run import Workspace
    from deepshare.study.compare.runner import Limits, Runner
    from deepshare.study.compare.study_file import load_study
    from deepshare.text import nearest

    chosen = load_study(study)
    find_engine(chosen.engine)
    unknown = [method for method in only if method not in chosen.methods]
    if unknown:
        known = f"{nearest(unknown[0], list(chosen.methods))} (there are {', '.join(chosen.methods)})"
        raise RecipeError(f"--only {unknown[0]}: the study {chosen.name} has no such method{known}")
    folders = work or Path("runs/compare") / chosen.name, out or Path("results/compare") / chosen.name
    runner = Runner(chosen, Workspace(*folders, data_dir, download, teacher, precision, compile))
    if show_list:
        list_runs(runner, only, as_json)
    elif dry_run:
        try_all(runner, only, as_json)
    else:
        limits = Limits(minutes, limit, only)
        if launch == "slurm":
            submit(runner, limits, at_once, resources)
        elif not show:
            run_all(runner, limits, at_once or 2 if launch else None)
        show_results(runner, as_json)


def check_launch(
    launch: Launch | None, minutes: float | None, at_once: int | None, resources: dict[str, Any], *, idle: bool
) -> None:
    """Check that the flags can be combined.

    Raises:
        DeepShareError: Some cannot.
    """
    given = [flag for flag, value in resources.items() if value is not None]
    if given and launch != "slurm":
        raise DeepShareError(f"--{given[0]} is for --launch slurm")
    if at_once is not None and launch is None:
        raise DeepShareError("--at-once is for --launch local and --launch slurm")
    if launch and idle:
        raise DeepShareError("--launch runs a study: it does not go with --show, --list or --dry-run")
    if launch and minutes is not None:
        raise DeepShareError("--minutes is for runs in sequence: with --launch give --limit")
    least = {"at-once": (at_once, 1), "hours": (resources["hours"], 1e-9), "cores": (resources["cores"], 1)}
    wrong = [flag for flag, (value, low) in least.items() if value is not None and value < low]
    if wrong:
        raise DeepShareError(f"--{wrong[0]}: give more than 0")
    if resources["gpus"] not in (None, 0, 1):
        raise DeepShareError(f"--gpus {resources['gpus']}: a run is on one GPU (1) or on none (0)")


def run_all(runner: "Runner", limits: "Limits", at_once: int | None) -> None:
    """Execute open runs, in sequence or several at a time, with progress on stderr."""
    from deepshare.study.compare.launch.local import run_local
    from deepshare.study.compare.page import save
    from deepshare.training.reporter import make_reporter

    def on_outcome(outcome: "RunOutcome") -> None:
        save(runner.study, runner.outcomes(), runner.out)
        print(f"{outcome.job.name}: {describe(outcome)}", file=sys.stderr, flush=True)

    try:
        if at_once is None:
            end = runner.run(limits, make_reporter, on_outcome)
        else:
            end = run_local(runner, limits, at_once, make_reporter, on_outcome)
    except KeyboardInterrupt:
        print("stopped: run the same command to continue after the last epoch", file=sys.stderr)
        raise
    if end == "stopped":
        print("stopped before the next run, as requested; run the same command to continue", file=sys.stderr)
    elif end == "elsewhere":
        print("other processes are at what is left", file=sys.stderr)


def submit(runner: "Runner", limits: "Limits", at_once: int | None, resources: dict[str, Any]) -> None:
    """Submit open runs to SLURM, with progress on stderr."""
    from deepshare.study.compare.launch import slurm
    from deepshare.training.reporter import make_reporter

    given = {flag: value for flag, value in resources.items() if value is not None}
    ids = slurm.submit(runner, limits, slurm.Resources(**given, at_once=at_once), make_reporter)
    for job, number in ids.items():
        print(f"{job.name}: job {number}", file=sys.stderr)
    more = "; when they are finished, the same command submits what is left" if ids else ""
    print(f"{len(ids)} runs submitted{more}", file=sys.stderr, flush=True)


def show_results(runner: "Runner", as_json: bool) -> None:
    """Print the results so far and write the page and the plots."""
    from deepshare.study.compare.page import as_text, save
    from deepshare.study.compare.runner import make_folder
    from deepshare.study.compare.tables import rows_by_images

    outcomes = runner.outcomes()
    if outcomes:
        make_folder(runner.out, "--out")
        save(runner.study, outcomes, runner.out)
    if as_json:
        found = [row.to_dict() for _, rows in rows_by_images(runner.study, outcomes) for row in rows]
        print(json.dumps({"study": runner.study.name, "rows": found}, indent=1))
    else:
        written = f"\n\nwritten to {runner.out}/README.md" if outcomes else ""
        print(f"{as_text(runner.study, outcomes)}{written}")


def list_runs(runner: "Runner", only: tuple[str, ...], as_json: bool) -> None:
    """Print the state of every run, or of those of some methods."""
    from deepshare.study.compare.page import progress
    from deepshare.text import table

    states = [state for state in runner.states() if not only or state[0].method in only]
    if as_json:
        print(json.dumps([{"run": job.name, "state": state} for job, state, _ in states], indent=1))
        return
    rows = [(job.name, state, describe(outcome) if outcome else "") for job, state, outcome in states]
    known = runner.outcomes()
    left = sum(runner.minutes(job, known) for job, _, outcome in states if outcome is None)
    print(table(("run", "state", ""), rows, "<<<", terminal_width()))
    print(f"{progress(runner.study, known)} What is left takes up to {left / 60:.1f} h, one after the other.")


def try_all(runner: "Runner", only: tuple[str, ...], as_json: bool) -> None:
    """Train one batch of every run and print the outcome."""
    from deepshare.study.compare.run import dry_run
    from deepshare.study.compare.runner import kinds

    found: list[dict[str, Any]] = []
    for job in kinds(runner.study):
        if only and job.method not in only:
            continue
        reason = dry_run(runner.study, job, runner.workspace)
        found.append({"run": job.name, "refused": reason})
        if not as_json:
            print(f"{job.name}: {reason or 'every phase runs'}", flush=True)
    if as_json:
        print(json.dumps(found, indent=1))


def describe(outcome: "RunOutcome") -> str:
    """Summarise an outcome in a few words."""
    from deepshare.study.compare.tables import took

    if outcome.run is None:
        return f"no result: {outcome.refused}"
    return f"{outcome.run.test:.2f}% with {outcome.run.gates:,} gates in {took(outcome.run.seconds)}"
