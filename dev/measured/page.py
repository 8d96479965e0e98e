"""Measured parts of pages, each between two marks. A part stays as it is until its first measurement has a record."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dev.measured import gateshare, private, training
from dev.measured.text import Figures, say

PAGES = ("docs/measurements.md", "docs/private.md", "README.md")
MARKS = re.compile(r"<!-- measured: ([\w-]+) -->\n.*?<!-- end of \1 -->", re.DOTALL)


STALE = "**Older than the code that it is about.**"
OLD_FIGURES = "**Some of these figures are older than the code.**"


@dataclass(frozen=True)
class Part:
    """A part of a page: the measurements it shows, the first of which it needs, and how it is written."""

    names: tuple[str, ...]
    write: Callable[[Figures], str]
    cited: bool = True


def filled(text: str, figures: Figures, abouts: Mapping[str, str]) -> str:
    """Write every part of a page whose figures are there, and below it how they came about, or that they are old."""

    def fill(found: re.Match[str]) -> str:
        part = PARTS[found[1]]
        if part.names[0] not in figures:
            return found[0]
        there = [name for name in part.names if name in figures]
        body = part.write({name: figures[name] for name in there})
        if part.cited:
            body += "\n\n" + "\n".join(say(f"- {abouts[name]}") for name in there)
        elif any(STALE in abouts[name] for name in there):
            body += f"\n\n{OLD_FIGURES}"
        return f"<!-- measured: {found[1]} -->\n\n{body}\n\n<!-- end of {found[1]} -->"

    return MARKS.sub(fill, text)


LATENCY = tuple(f"latency-{engine}-{what}" for engine in private.ENGINES for what in (*private.SETUPS, "lan", "wan"))
PARTS = {
    "alternatives": Part(("gateshare", "two-party-resnet18"), gateshare.alternatives, cited=False),
    "protocol": Part(("gateshare", "gateshare-avx2", "gateshare-bits"), gateshare.protocol),
    "links": Part(("gateshare-wan", "gateshare-lan"), gateshare.links),
    "larger": Part(("wrn22-8", "resnet18-64"), gateshare.larger),
    "ring": Part(("ring",), gateshare.ring),
    "clients": Part(("clients",), private.clients),
    "ask": Part(("ask",), private.ask),
    "soak": Part(("soak",), private.soak),
    "marks": Part(("marks",), private.marks),
    "imagenet": Part(
        ("imagenet-resnet50", "imagenet-stage", "imagenet-resnet18", "imagenet-vgg16", "imagenet-avx2"),
        private.imagenet,
    ),
    "two-party": Part(
        (
            "two-party",
            "two-party-8",
            "two-party-lan",
            "two-party-wan",
            "two-party-resnet18",
            "two-party-resnet18-lan",
            "two-party-resnet18-wan",
            "two-party-resnet18-8",
            "two-party-avx2",
        ),
        private.two_party,
    ),
    "engines": Part(("two-party-resnet18", "two-party-others", "latency-crypten-resnet18"), private.engines),
    "ot": Part(("ot",), private.transfers),
    "seconds": Part(("seconds",), private.estimated),
    "latency": Part(LATENCY, private.latency),
    "fidelity": Part(("fidelity",), private.fidelity),
    "fidelity-2pc": Part(("fidelity-2pc",), private.fidelity_without_dealer),
    "fidelity-parties": Part(
        ("fidelity-parties-gateshare-2pc", "fidelity-parties-gateshare"), private.fidelity_of_parties
    ),
    "bits": Part(
        ("bits-1536-all", "bits-1536-calibrated", "bits-2288-all", "bits-2288-calibrated"), private.comparison_bits
    ),
    "planning": Part(("planning",), training.planning),
    "training-step": Part(("training-step",), training.step),
    "training-loop": Part(("training-loop",), training.loop),
    "feeding": Part(("feeding",), training.feeding),
}
