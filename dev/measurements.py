"""Measure what `docs/measurements.md` and the README state, and write these parts of the pages.

    python dev/measurements.py               # all that is missing or older than its code: an hour or two on quiet cores
    python dev/measurements.py --only NAME   # some, whatever their age; NAME may be a pattern such as 'latency-*'
    python dev/measurements.py --list        # names, commands, expected minutes, and which are stale
    python dev/measurements.py --page        # only write the pages

Each measurement is a benchmark of this repository, run with --json. A record in results/measurements keeps its figures
with the command, commit, machine and load, as soon as it has them: a stopped run resumes with the next one, and one
that fails does not stop the others. A record is stale if the code that it is about has changed since then, comments and
docstrings aside; the page says so. Its fingerprint binds it to that code. The commit that it names tells where to find
it: once a rebase has taken that commit away, the page says that it is not in this history. Some measurements need data:
--data-dir says where it is.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from dev.measured import code as measured_code
from dev.measured import page as measured_page

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "measurements"
DATA = "DIR"
STALE = "**Older than the code that it is about.**"
UNKNOWN = " (not in this history)"
GATESHARE = "src/deepshare/private/engines/gateshare"
PROTOCOL = (GATESHARE, "src/deepshare/private/transport", "src/deepshare/private/ir")
TWO_PARTY = (*PROTOCOL, "src/deepshare/private/engines/spu")
CRYPTEN = ("src/deepshare/private/engines/crypten", *PROTOCOL[1:])
SERVING = (*PROTOCOL, "src/deepshare/private/remote")
SHARING, DATA_LOADING = "src/deepshare/sharing", "src/deepshare/data"
# Nothing here takes longer than this times what was expected, and this many seconds, unless it hangs.
PATIENCE, LEAST_PATIENCE = 6, 60.0


@dataclass(frozen=True)
class Measurement:
    """A benchmark with its arguments, the code that it is about, and the minutes it takes on two quiet cores."""

    name: str
    command: str
    code: tuple[str, ...]
    minutes: float

    @property
    def file(self) -> Path:
        """Its record."""
        return RECORDS / f"{self.name}.json"

    @property
    def paths(self) -> tuple[str, ...]:
        """The benchmark and the code that it is about."""
        return (self.command.split()[0], *self.code)

    @property
    def record(self) -> dict[str, Any]:
        """What was measured, and on what."""
        content: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        return content


def _gateshare(name: str, options: str, minutes: float) -> Measurement:
    return Measurement(name, f"benchmarks/gateshare.py {options}".rstrip(), PROTOCOL, minutes)


def _two_party(name: str, options: str, minutes: float) -> Measurement:
    return Measurement(name, f"benchmarks/two_party.py {options}".rstrip(), TWO_PARTY, minutes)


def _latency(engine: str, code: tuple[str, ...]) -> Iterator[Measurement]:
    minutes = {"resnet18": 2.0, "wrn22-8": 3.0, "tiny-resnet18": 3.0}
    rounds = "" if engine == "crypten" else " --rounds 1"
    for network, expected in minutes.items():
        command = f"benchmarks/latency.py --only {network} --engine {engine}{rounds}"
        yield Measurement(f"latency-{engine}-{network}", command, code, expected)
    for link, expected in (("lan", 2.0), ("wan", 4.0)):
        command = f"benchmarks/latency.py --full --first --engine {engine} --rounds 1 --link {link}"
        yield Measurement(f"latency-{engine}-{link}", command, code, expected)


def _privately() -> Iterator[Measurement]:
    """Real images with real parties; after a kill they go on with what they keep."""
    for engine, minutes in (("gateshare", 5.0), ("gateshare-2pc", 30.0)):
        command = f"benchmarks/fidelity.py cifar100-resnet18w16-2288 --engine {engine} --images 1000 --batch 25"
        keep = f"--keep build/fidelity-{engine}.safetensors"
        yield Measurement(f"fidelity-parties-{engine}", f"{command} --data-dir {DATA} {keep}", PROTOCOL, minutes)


MEASUREMENTS = (
    _gateshare("gateshare", "--rounds 6", 4),
    _gateshare("gateshare-avx2", "--rounds 6 --without-avx512 --peers stock relu", 4),
    _gateshare("gateshare-bits", "--rounds 3 --comparison-bits calibrated --peers relu", 2),
    _gateshare("gateshare-lan", "--link lan --rounds 5 --peers stock relu", 2),
    _gateshare("gateshare-wan", "--link wan --rounds 5 --peers stock relu", 3),
    _gateshare("wrn22-8", "--network wrn22-8 --rounds 3 --peers relu", 2),
    _gateshare("resnet18-64", "--network resnet18-64 --rounds 3 --peers relu", 2),
    Measurement("clients", "benchmarks/clients.py --dealer --images 4", SERVING, 6),
    Measurement("ask", "benchmarks/clients.py --shell 10", SERVING, 1),
    _two_party("two-party", "--rounds 5", 4),
    _two_party("two-party-8", "--engines gateshare gateshare-2pc --images 8", 2),
    _two_party("two-party-lan", "--engines gateshare gateshare-2pc --rounds 3 --link lan", 1),
    _two_party("two-party-wan", "--engines gateshare gateshare-2pc --rounds 3 --link wan", 1),
    _two_party("two-party-resnet18", "--network resnet18 --rounds 3", 6),
    _two_party(
        "two-party-resnet18-lan", "--network resnet18 --engines gateshare gateshare-2pc --rounds 2 --link lan", 2
    ),
    _two_party(
        "two-party-resnet18-wan", "--network resnet18 --engines gateshare gateshare-2pc --rounds 2 --link wan", 3
    ),
    _two_party("two-party-resnet18-8", "--network resnet18 --engines gateshare gateshare-2pc --images 8", 3),
    _two_party("two-party-cheetah-lan", "--engines spu-cheetah --link lan", 2),
    _two_party("two-party-cheetah-wan", "--engines spu-cheetah --link wan", 3),
    Measurement(
        "two-party-others",
        "benchmarks/two_party.py --network resnet18 --engines crypten spu-semi2k --rounds 3",
        (*TWO_PARTY, CRYPTEN[0]),
        3,
    ),
    Measurement("ot", "benchmarks/ot.py", (f"{GATESHARE}/crypto",), 0.5),
    Measurement("seconds", "benchmarks/seconds.py", PROTOCOL, 2),
    Measurement("imagenet-resnet18", "benchmarks/imagenet.py --networks resnet18", PROTOCOL, 3),
    Measurement("imagenet-resnet50", "benchmarks/imagenet.py --networks resnet50", PROTOCOL, 3),
    Measurement("imagenet-vgg16", "benchmarks/imagenet.py --networks vgg16_bn", PROTOCOL, 4),
    *_latency("crypten", CRYPTEN),
    *_latency("gateshare", PROTOCOL),
    Measurement("fidelity", "benchmarks/fidelity.py digits-resnet10-192", CRYPTEN, 1),
    Measurement(
        "fidelity-2pc",
        "benchmarks/fidelity.py cifar100-resnet18w16-2288 --engine gateshare-2pc --clear --images 1000"
        f" --data-dir {DATA}",
        PROTOCOL,
        3,
    ),
    *_privately(),
    Measurement("planning", "benchmarks/planning.py", (SHARING,), 0.2),
    Measurement("training-step", "benchmarks/training_step.py --batch 32 --rounds 5", (SHARING,), 3),
    Measurement(
        "training-loop", "benchmarks/training_loop.py", (SHARING, "src/deepshare/training/loop.py", DATA_LOADING), 2
    ),
    Measurement("feeding", "benchmarks/feeding.py", (DATA_LOADING,), 0.5),
    Measurement("ring", "benchmarks/ring.py", (GATESHARE,), 0.5),
    Measurement("soak", "benchmarks/soak.py", SERVING, 11),
)


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
    minutes = [one.record["minutes"] if one.file.is_file() else one.minutes for one in wanted]
    lines = [
        f"{one.name:32}{state(one):16}{took:>5.1f} min  python {one.command}"
        for one, took in zip(wanted, minutes, strict=True)
    ]
    return "\n".join([*lines, f"{sum(minutes):.0f} minutes in all, on two quiet cores"]) + "\n"


def run_all(wanted: Sequence[Measurement], data_dir: Path | None) -> list[str]:
    """Measure one after the other; returns what went wrong, a line for each that has no new record."""
    if wanted and (changed := uncommitted()):
        raise SystemExit(f"commit first, a record names a commit: {changed}")
    failed = []
    for number, one in enumerate(wanted, 1):
        sys.stdout.write(f"{one.name} ({number} of {len(wanted)}, {one.minutes:g} min): python {one.command}\n")
        sys.stdout.flush()
        try:
            measure(one, data_dir)
            write_pages()
        except FailedError as error:
            failed.append(f"{one.name}: {error}")
            sys.stdout.write(f"{error}\n")
    return failed


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
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
        "load_before": round(load, 2),
        "minutes": round((time.monotonic() - started) / 60, 1),
        # Benchmarks end with 1 where a figure misses its limit: that is a result, and the page says so.
        "within_limits": status == 0,
        "figures": figures,
    }
    RECORDS.mkdir(parents=True, exist_ok=True)
    fresh = one.file.with_suffix(".new")
    fresh.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    fresh.replace(one.file)


def _run(words: list[str], seconds: float) -> tuple[int, str]:
    """Run a benchmark in a session of its own, so that its parties end with it; returns exit status and output."""
    command = [sys.executable, *words, "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
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
    old = "" if state(one) == "current" else f" {STALE}"
    return f"{words}, load {record['load_before']} before it began.{missed}{old}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.processor()


if __name__ == "__main__":
    main()
