"""Measure what `docs/measurements.md` shows, and write that part of the page.

    python dev/measurements.py               # all that is missing or older than its code: hours, on quiet cores
    python dev/measurements.py --only NAME   # one of them, whatever its age
    python dev/measurements.py --list        # names, commands, and which are stale
    python dev/measurements.py --page        # only write the page

Each measurement is a benchmark of this repository; a record in results/measurements keeps what it printed, with its
command, commit, machine and load. A stopped run goes on where it was. A record is stale if the code that it is about
has changed since then, comments and docstrings aside; the page says so.
"""

import argparse
import ast
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "measurements"
PAGE = ROOT / "docs" / "measurements.md"
STALE = "**Older than the code that it is about.**"
START, END = "<!-- records -->", "<!-- end of records -->"
PROTOCOL = ("src/deepshare/private/engines/gateshare", "src/deepshare/private/transport", "src/deepshare/private/ir")
CRYPTEN = ("src/deepshare/private/engines/crypten", *PROTOCOL[1:])
TRAINING = ("src/deepshare/sharing", "src/deepshare/training/loop.py", "src/deepshare/data")


@dataclass(frozen=True)
class Measurement:
    """A benchmark with its arguments, and the code that it is about."""

    name: str
    title: str
    command: str
    code: tuple[str, ...]

    @property
    def file(self) -> Path:
        """Its record."""
        return RECORDS / f"{self.name}.json"


TITLES = {
    "resnet18": "ResNet-18 at 32x32",
    "wrn22-8": "WRN-22-8 at 32x32",
    "tiny-resnet18": "ResNet-18 at 64x64",
}
Cells = dict[tuple[str, str, str], dict[str, str]]
RATIOS = ("online", "rounds", "x activations", "x time in all", "x bytes of activations", "x all bytes", "paper")
LATENCY_TITLE = "The paper's latency table"
LATENCY_WORDS = """\
One image online with secret weights. A column with x is the figure of the network with all ReLUs divided by that of the
row: time of the activations, time in all, bytes of the activations, all bytes with those sent before the image. The
paper's column is its Table 6, of time in all on two GPUs. `python benchmarks/latency.py --help` says which gates
SNL and AutoReP have at each site.

- On a CPU the convolutions of shares take half or more of an inference with few gates, so that time in all falls less
  than that of the activations. On the paper's GPUs convolutions are nearly free, and its factors are more like those of
  the activations.
- In the paper AutoReP is ahead of DeepShare. Here DeepShare is, in time: both have the same gates, but AutoReP squares
  all its other neurons, which costs products and, on `crypten`, rounds. The paper took AutoReP's factors from its
  authors.
- SNL's neurons without a gate are linear and cost nothing, so it sends the least; its accuracy is in the studies.
- `gateshare` opens every neuron online, gate or not, so gates save time there and bytes before the image."""
LATENCY = tuple(
    Measurement(
        f"latency-{engine}-{network}",
        f"The paper's latency table: {title} on {engine}",
        f"benchmarks/latency.py --only {network} --engine {engine}{rounds}",
        code,
    )
    for engine, code, rounds in (("crypten", CRYPTEN, ""), ("gateshare", PROTOCOL, " --rounds 1"))
    for network, title in TITLES.items()
) + tuple(
    Measurement(
        f"latency-{engine}-{link}",
        f"Its first row of each network on a {link.upper()}, {engine}",
        f"benchmarks/latency.py --full --first --engine {engine} --rounds 1 --link {link}",
        code,
    )
    for engine, code in (("crypten", CRYPTEN), ("gateshare", PROTOCOL))
    for link in ("lan", "wan")
)
MEASUREMENTS = (
    Measurement(
        "gateshare",
        "ResNet-18 at 32x32 with 6,000 gates, next to CrypTen",
        "benchmarks/gateshare.py --rounds 6",
        PROTOCOL,
    ),
    Measurement(
        "gateshare-avx2",
        "The same without AVX-512",
        "benchmarks/gateshare.py --without-avx512 --peers stock relu",
        PROTOCOL,
    ),
    Measurement(
        "gateshare-lan",
        "The same on a LAN of 1 Gbit/s and 0.5 ms",
        "benchmarks/gateshare.py --link lan --rounds 5 --peers stock",
        PROTOCOL,
    ),
    Measurement(
        "gateshare-wan",
        "The same on a WAN of 100 Mbit/s and 40 ms",
        "benchmarks/gateshare.py --link wan --rounds 5 --peers stock relu",
        PROTOCOL,
    ),
    Measurement(
        "wrn22-8",
        "WRN-22-8 with 60,000 gates",
        "benchmarks/gateshare.py --network wrn22-8 --rounds 5 --peers relu",
        PROTOCOL,
    ),
    Measurement(
        "resnet18-64",
        "ResNet-18 at 64x64 with 30,000 gates",
        "benchmarks/gateshare.py --network resnet18-64 --rounds 5 --peers relu",
        PROTOCOL,
    ),
    Measurement("imagenet", "ResNet-18, ResNet-50 and VGG-16 at 224x224", "benchmarks/imagenet.py", PROTOCOL),
    Measurement("clients", "Many clients of one server", "benchmarks/clients.py --images 4", PROTOCOL),
    *LATENCY,
    Measurement("two-party", "Without a dealer", "benchmarks/two_party.py", PROTOCOL),
    Measurement("ring", "Products and comparisons", "benchmarks/ring.py", PROTOCOL[:1]),
    Measurement("planning", "Planning a ResNet-50 at 224x224", "benchmarks/planning.py", TRAINING[:1]),
    Measurement("training-step", "A training step", "benchmarks/training_step.py --quick", TRAINING[:1]),
    Measurement("training-loop", "The training loop", "benchmarks/training_loop.py", TRAINING),
    Measurement("feeding", "Loading of data", "benchmarks/feeding.py", TRAINING[2:]),
)


def main() -> None:
    """Measure as asked, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [one.name for one in MEASUREMENTS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--list", action="store_true", help="only list them")
    parser.add_argument("--page", action="store_true", help="only write the page")
    options = parser.parse_args()
    if options.list:
        for one in MEASUREMENTS:
            sys.stdout.write(f"{one.name:32}{state(one):16}python {one.command}\n")
        return
    if not options.page:
        wanted = [
            one for one in MEASUREMENTS if (one.name in options.only if options.only else state(one) != "current")
        ]
        for number, one in enumerate(wanted, 1):
            sys.stdout.write(f"{one.name} ({number} of {len(wanted)}): python {one.command}\n")
            sys.stdout.flush()
            measure(one)
    write_page()


def measure(one: Measurement) -> None:
    """Run a benchmark, and keep what it printed."""
    if changed := _git("status", "--porcelain", "--", "src", "benchmarks"):
        raise SystemExit(f"commit first, a record names a commit: {changed.splitlines()[0]}")
    load, started = os.getloadavg()[0], time.monotonic()
    done = subprocess.run([sys.executable, *one.command.split()], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    # Benchmarks exit with 1 where a figure misses its limit, and say so: that is a result.
    if done.returncode not in (0, 1) or not done.stdout.strip():
        raise SystemExit(f"{one.command} failed; what it said is above")
    sys.stdout.write(done.stdout)
    record = {
        "command": f"python {one.command}",
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "code": fingerprint(one),
        "date": time.strftime("%Y-%m-%d"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
        "load_before": round(load, 2),
        "minutes": round((time.monotonic() - started) / 60, 1),
        "output": done.stdout.rstrip("\n").split("\n"),
    }
    RECORDS.mkdir(parents=True, exist_ok=True)
    one.file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def state(one: Measurement) -> str:
    """Return "current", "stale", "other command" or "not measured"."""
    if not one.file.is_file():
        return "not measured"
    record = json.loads(one.file.read_text(encoding="utf-8"))
    if record["command"] != f"python {one.command}":
        return "other command"
    return "current" if record["code"] == fingerprint(one) else "stale"


def fingerprint(one: Measurement) -> str:
    """Return a checksum of a benchmark and the code that it is about, without docstrings and lines of comment."""
    found = hashlib.sha256()
    for path in (ROOT / path for path in (one.command.split()[0], *one.code)):
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            code = "\n".join(_code(file.read_text(encoding="utf-8")))
            found.update(f"{file.relative_to(ROOT).as_posix()}\n{code}\n".encode())
    return found.hexdigest()


def _code(text: str) -> Iterator[str]:
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    for number, line in enumerate(text.splitlines(), 1):
        if number not in docstrings and line.strip() and not line.lstrip().startswith("#"):
            yield line


def write_page() -> None:
    """Put all records between their marks."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(START)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{START}\n\n{records()}\n{END}{after}", encoding="utf-8")


def records() -> str:
    """Format all records as Markdown: the latency table as one, the others as they were printed."""
    sections = [section(one) for one in MEASUREMENTS if one.file.is_file() and one not in LATENCY]
    return "\n".join([*sections, *([latency_table()] if any(one.file.is_file() for one in LATENCY) else [])])


def latency_table() -> str:
    """Format the records of the paper's latency table side by side."""
    ratios: dict[str, Cells] = {"crypten": {}, "gateshare": {}}
    seconds: Cells = {}
    abouts = []
    for one in (one for one in LATENCY if one.file.is_file()):
        record = json.loads(one.file.read_text(encoding="utf-8"))
        abouts.append(f"- {_about(one, record)}")
        _, engine, place = one.name.split("-", 2)
        for line in record["output"][2:]:
            setup, kind, (gates, online, *figures) = line[:14].strip(), line[14:24].strip(), line[32:].split()
            row = (TITLES[setup], gates, "all ReLUs" if kind == "ReLU" else kind)
            online = online.replace("s", " s")
            if place in ("lan", "wan"):
                seconds.setdefault(row, {})[f"{engine}, {place.upper()}"] = online
            else:  # time, megabytes of activations and before the image are left out
                shown = [online, *figures[3:8], *(figures[8:] or [""])]
                ratios[engine][row] = dict(zip(RATIOS, shown, strict=True))
    links = [f"{engine}, {link}" for engine in ratios for link in ("LAN", "WAN")]
    parts = [f"### {LATENCY_TITLE}", LATENCY_WORDS]
    parts += [f"On `{engine}`:\n\n{_markdown(RATIOS, cells)}" for engine, cells in ratios.items() if cells]
    if seconds:
        parts += ["Time online over a link, for the first row of each network:", _markdown(links, seconds)]
    return "\n\n".join([*parts, "\n".join(abouts)]) + "\n"


def _markdown(columns: Sequence[str], rows: Cells) -> str:
    lines = [f"| network | gates | | {' | '.join(columns)} |", f"|---|---:|---|{'---:|' * len(columns)}"]
    for row, cells in rows.items():
        lines.append(f"| {' | '.join([*row, *(cells.get(column, '') for column in columns)])} |")
    return "\n".join(lines)


def section(one: Measurement) -> str:
    """Format one record."""
    record = json.loads(one.file.read_text(encoding="utf-8"))
    output = "\n".join(record["output"])
    return f"### {one.title}\n\n{_about(one, record)}\n\n```\n{output}\n```\n"


def _about(one: Measurement, record: dict[str, Any]) -> str:
    machine = f"{record['cores']} cores of {record['processor']}, {record['instructions']}, torch {record['torch']}"
    about = (
        f"`{record['command']}`, commit {record['commit']}, {record['date']}, {machine}, load {record['load_before']}"
    )
    old = "" if state(one) == "current" else f" {STALE}"
    return f"{about} before it began.{old}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.processor()


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
