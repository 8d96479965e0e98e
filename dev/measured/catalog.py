"""The measurements: each a benchmark with its arguments, and the code that it is about."""

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results" / "measurements"
DATA = "DIR"
GATESHARE = "src/deepshare/private/engines/gateshare"
PROTOCOL = (GATESHARE, *(f"src/deepshare/private/{room}" for room in ("transport", "ir", "runtime")))
TWO_PARTY = (*PROTOCOL, "src/deepshare/private/engines/spu")
CRYPTEN = ("src/deepshare/private/engines/crypten", *PROTOCOL[1:])
BESIDE_CRYPTEN = (*PROTOCOL, CRYPTEN[0])
SERVING = (*PROTOCOL, "src/deepshare/private/remote")
SHARING, DATA_LOADING = "src/deepshare/sharing", "src/deepshare/data"


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
        """The benchmark, its helpers and the code that it is about."""
        return (*_with_helpers(self.command.split()[0]), *self.code)

    @property
    def record(self) -> dict[str, Any]:
        """What was measured, and on what."""
        content: dict[str, Any] = json.loads(self.file.read_text(encoding="utf-8"))
        return content


def _with_helpers(benchmark: str) -> list[str]:
    """Return a benchmark and the files beside it that it imports, and that they import."""
    found = [benchmark]
    for path in found:
        folder = Path(path).parent
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        modules = [node.module for node in tree.body if isinstance(node, ast.ImportFrom)]
        modules += [name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names]
        helpers = ((folder / f"{module}.py").as_posix() for module in modules)
        found.extend(helper for helper in helpers if helper not in found and (ROOT / helper).is_file())
    return found


def _gateshare(name: str, options: str, minutes: float, code: tuple[str, ...] = PROTOCOL) -> Measurement:
    return Measurement(name, f"benchmarks/gateshare.py {options}".rstrip(), code, minutes)


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


def _bits() -> Iterator[Measurement]:
    """Gates by comparisons of all bits and of calibrated ones, in the clear."""
    for network in ("1536", "2288"):
        command = f"benchmarks/fidelity.py cifar100-resnet18w16-{network} --engine gateshare --clear --images 1000"
        command += f" --samples 256 --data-dir {DATA}"
        for name, option in (("all", ""), ("calibrated", " --comparison-bits calibrated")):
            yield Measurement(f"bits-{network}-{name}", command + option, PROTOCOL, 0.5)


# The most important first.
MEASUREMENTS = (
    _gateshare("gateshare", "--rounds 6", 4, BESIDE_CRYPTEN),
    _gateshare("gateshare-bits", "--rounds 3 --comparison-bits calibrated --peers relu", 2),
    _two_party("two-party", "--rounds 5", 4),
    _two_party("two-party-8", "--images 8", 4),
    _two_party("two-party-lan", "--rounds 3 --link lan", 2),
    _two_party("two-party-wan", "--rounds 3 --link wan", 4),
    _two_party("two-party-resnet18", "--network resnet18 --rounds 3", 6),
    _two_party(
        "two-party-resnet18-lan", "--network resnet18 --engines gateshare gateshare-2pc --rounds 4 --link lan", 2
    ),
    _two_party(
        "two-party-resnet18-wan", "--network resnet18 --engines gateshare gateshare-2pc --rounds 4 --link wan", 3
    ),
    _two_party("two-party-resnet18-8", "--network resnet18 --engines gateshare gateshare-2pc --images 8", 3),
    _two_party("two-party-avx2", "--engines gateshare gateshare-2pc --rounds 3 --without-avx512", 1),
    Measurement(
        "two-party-others",
        "benchmarks/two_party.py --network resnet18 --engines crypten spu-semi2k --rounds 3",
        (*TWO_PARTY, CRYPTEN[0]),
        3,
    ),
    _gateshare("gateshare-lan", "--link lan --rounds 5 --peers stock relu", 2),
    _gateshare("gateshare-wan", "--link wan --rounds 5 --peers stock relu", 3),
    Measurement("imagenet-resnet18", "benchmarks/imagenet.py --networks resnet18", PROTOCOL, 3),
    Measurement("imagenet-resnet50", "benchmarks/imagenet.py --networks resnet50", PROTOCOL, 3),
    Measurement(
        "imagenet-stage", "benchmarks/imagenet.py --networks resnet50 --pooling shared --groups stage", PROTOCOL, 1
    ),
    Measurement("imagenet-vgg16", "benchmarks/imagenet.py --networks vgg16_bn", PROTOCOL, 4),
    Measurement(
        "imagenet-avx2",
        "benchmarks/imagenet.py --networks resnet50 --pooling shared --without-avx512",
        PROTOCOL,
        1,
    ),
    Measurement("seconds", "benchmarks/seconds.py", PROTOCOL, 2),
    *_latency("gateshare", PROTOCOL),
    *_latency("crypten", CRYPTEN),
    Measurement("clients", "benchmarks/clients.py --dealer --images 4", SERVING, 6),
    Measurement("ask", "benchmarks/clients.py --shell 10", SERVING, 1),
    _gateshare("gateshare-avx2", "--rounds 6 --without-avx512 --peers stock relu", 4),
    _gateshare("wrn22-8", "--network wrn22-8 --rounds 3 --peers relu", 2),
    _gateshare("resnet18-64", "--network resnet18-64 --rounds 3 --peers relu", 2),
    Measurement("ot", "benchmarks/ot.py", (f"{GATESHARE}/crypto",), 0.5),
    Measurement("fidelity", "benchmarks/fidelity.py digits-resnet10-192", CRYPTEN, 1),
    Measurement(
        "fidelity-2pc",
        "benchmarks/fidelity.py cifar100-resnet18w16-2288 --engine gateshare-2pc --clear --images 1000"
        f" --data-dir {DATA}",
        PROTOCOL,
        3,
    ),
    *_bits(),
    Measurement("planning", "benchmarks/planning.py", (SHARING,), 0.2),
    Measurement("training-step", "benchmarks/training_step.py --batch 32 --rounds 5", (SHARING,), 3),
    Measurement(
        "training-loop", "benchmarks/training_loop.py", (SHARING, "src/deepshare/training/loop.py", DATA_LOADING), 2
    ),
    Measurement("feeding", "benchmarks/feeding.py", (DATA_LOADING,), 0.5),
    Measurement("ring", "benchmarks/ring.py", (GATESHARE,), 0.5),
    Measurement("marks", "benchmarks/marks.py", (f"{GATESHARE}/preprocessing/marks.py",), 0.2),
    Measurement("soak", "benchmarks/soak.py", SERVING, 11),
    *_privately(),
)
