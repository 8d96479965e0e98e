"""Measure what `docs/measurements.md` and the README state, and write these parts of the pages.

    python dev/measurements.py               # all that is missing or older than its code: an hour or two on quiet cores
    python dev/measurements.py --only NAME   # some, whatever their age; NAME may be a pattern such as 'latency-*'
    python dev/measurements.py --list        # names, commands, expected minutes, and which are stale
    python dev/measurements.py --page        # only write the pages

Each measurement is a benchmark of this repository, run with --json. A record in results/measurements keeps its figures
with the command, commit, machine and load, as soon as it has them: a stopped run resumes with the next one, and one
that fails does not stop the others. The most important come first. Measurements that need data are skipped without
--data-dir.

A record is stale if the code that it is about has changed since then, comments and docstrings aside; the page says so.
Its fingerprint binds it to that code. The commit that it names tells where to find it: once a rebase has taken that
commit away, the page says that it is not in this history.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from dev.measured import code as measured_code
from dev.measured import page as measured_page
from dev.measured.catalog import DATA, MEASUREMENTS, ROOT, Measurement

UNKNOWN = " (not in this history)"
# Nothing here takes longer than this times what was expected, and this many seconds, unless it hangs.
PATIENCE, LEAST_PATIENCE = 6, 60.0


def main() -> None:
    """Measure as asked, and write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names or patterns, as --list shows them")
    parser.add_argument("--list", action="store_true", help="only list them")
    parser.add_argument("--page", action="store_true", help="only write the pages")
    parser.add_argument("--data-dir", type=Path, help="where data sets are")
    options = parser.parse_args()
    for pattern in options.only or ():
        if not any(fnmatch(one.name, pattern) for one in MEASUREMENTS):
            parser.error(f"no measurement is named {pattern}: {', '.join(one.name for one in MEASUREMENTS)}")
    if options.list:
        sys.stdout.write(listing(chosen(options.only) if options.only else MEASUREMENTS))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # a benchmark and its parties end with this
    failed = [] if options.page else run_all(chosen(options.only), options.data_dir)
    write_pages()
    if failed:
        raise SystemExit("\n".join(["not measured:", *failed]))


def chosen(patterns: Sequence[str] | None) -> list[Measurement]:
    """Return the measurements of these names; without any, those that are missing or stale."""
    if patterns is None:
        return [one for one in MEASUREMENTS if state(one) != "current"]
    return [one for one in MEASUREMENTS if any(fnmatch(one.name, pattern) for pattern in patterns)]


def listing(wanted: Sequence[Measurement]) -> str:
    """List measurements, with the minutes that each took the last time or is expected to take."""
    lines = [f"{one.name:32}{state(one):16}{minutes(one):>5.1f} min  python {one.command}" for one in wanted]
    return "\n".join([*lines, f"{sum(map(minutes, wanted)):.0f} minutes in all, on two quiet cores"]) + "\n"


def minutes(one: Measurement) -> float:
    """Return the minutes that a measurement took the last time, or is expected to take."""
    return float(one.record["minutes"]) if one.file.is_file() else one.minutes


def run_all(wanted: Sequence[Measurement], data_dir: Path | None) -> list[str]:
    """Measure one after the other; returns what went wrong, a line for each that has no new record."""
    if wanted and (changed := uncommitted()):
        raise SystemExit(f"commit first, a record names a commit: {changed}")
    without_data = [one for one in wanted if data_dir is None and DATA in one.command.split()]
    for one in without_data:
        say(f"{one.name}: skipped, it needs data: --data-dir DIR, or make measurements DATA=DIR")
    wanted = [one for one in wanted if one not in without_data]
    failed = []
    for number, one in enumerate(wanted, 1):
        left = sum(map(minutes, wanted[number - 1 :]))
        say(f"{number} of {len(wanted)}, {left:.0f} min left: {one.name}, {minutes(one):.1f} min: python {one.command}")
        try:
            measure(one, data_dir)
            write_pages()
        except FailedError as error:
            failed.append(f"{one.name}: {error}")
            say(failed[-1])
        except (LookupError, TypeError) as error:
            failed.append(f"{one.name}: has a record, which its page cannot show: {error!r}")
            say(failed[-1])
    return failed


def say(line: str) -> None:
    """Print a line now."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def uncommitted() -> str:
    """Return a file whose code is in no commit, or nothing."""
    return measured_code.git(ROOT, "status", "--porcelain", "--", "src", "benchmarks").partition("\n")[0]


class FailedError(Exception):
    """A benchmark gave no figures."""


def measure(one: Measurement, data_dir: Path | None = None) -> None:
    """Run a benchmark, and keep its figures."""
    words = one.command.split()
    if DATA in words and data_dir is None:
        raise FailedError("it needs data: give --data-dir")
    commit, measured = measured_code.git(ROOT, "rev-parse", "--short=12", "HEAD"), fingerprint(one)
    load, started = os.getloadavg()[0], time.monotonic()
    status, output = _run([str(data_dir) if word == DATA else word for word in words], 60 * PATIENCE * one.minutes)
    try:
        figures = json.loads(output)
    except ValueError:
        raise FailedError(f"it printed no figures and ended with {status}; what it said is above") from None
    if fingerprint(one) != measured or uncommitted():
        raise FailedError("its code changed while it ran: commit, and measure again")
    record = {
        "command": f"python {one.command}",
        "commit": commit,
        "paths": one.paths,
        "code": measured,
        "date": time.strftime("%Y-%m-%d"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "instructions": "AVX2" if "--without-avx512" in words else torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
        "load_before": round(load, 2),
        "minutes": round((time.monotonic() - started) / 60, 1),
        # Benchmarks end with 1 where a figure misses its limit: that is a result, and the page says so.
        "within_limits": status == 0,
        "figures": figures,
    }
    one.file.parent.mkdir(parents=True, exist_ok=True)
    fresh = one.file.with_suffix(".new")
    fresh.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    fresh.replace(one.file)


def _run(words: list[str], seconds: float) -> tuple[int, str]:
    """Run a benchmark in a session of its own, so that its parties end with it; returns exit status and output."""
    command = [sys.executable, *words, "--json"]
    # The code beside this file, not another copy that happens to be installed.
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=max(LEAST_PATIENCE, seconds))
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise FailedError(f"it was still running after {error.timeout / 60:.0f} minutes") from None
            raise
    return process.returncode, output


def state(one: Measurement) -> str:
    """Return "current", "stale", "other command" or "not measured"."""
    if not one.file.is_file():
        return "not measured"
    if one.record["command"] != f"python {one.command}":
        return "other command"
    return "current" if one.record["code"] == fingerprint(one) else "stale"


def fingerprint(one: Measurement) -> str:
    """Return a checksum of a benchmark and the code that it is about."""
    return measured_code.fingerprint(ROOT, one.paths)


def write_pages() -> None:
    """Fill in every measured part of the pages."""
    figures = {one.name: one.record["figures"] for one in MEASUREMENTS if one.file.is_file()}
    abouts = {one.name: about(one) for one in MEASUREMENTS if one.file.is_file()}
    for page in measured_page.PAGES:
        file = ROOT / page
        text = file.read_text(encoding="utf-8")
        file.write_text(measured_page.filled(text, figures, abouts), encoding="utf-8")


def about(one: Measurement) -> str:
    """Say how a record came about."""
    record = one.record
    capability = record["figures"].get("capability") if isinstance(record["figures"], dict) else None
    machine = f"{record['cores']} cores of {record['processor']}, {capability or record['instructions']}"
    commit = record["commit"] + ("" if measured_code.in_history(ROOT, record["commit"]) else UNKNOWN)
    words = f"`{record['command']}`, commit {commit}, {record['date']}, {machine}, torch {record['torch']}"
    missed = "" if record["within_limits"] else " It missed a limit of its own."
    old = "" if state(one) == "current" else f" {measured_page.STALE}"
    return f"{words}, load {record['load_before']} before it began.{missed}{old}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.processor()


if __name__ == "__main__":
    main()
