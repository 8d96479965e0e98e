"""Time to plan and share a ResNet-50 at 224x224, compared with one plain inference.

    python benchmarks/planning.py [--json]
    python benchmarks/planning.py --tiny     # ResNet-18 at 32x32: to see that it works

Planning includes finding the sites on a meta copy. The limit is 3 seconds for the first plan in a process.
"""

import argparse
import json
import time
from collections.abc import Callable

import torch

import deepshare

SIZE = (3, 224, 224)
LIMIT = 3.0


def seconds(work: Callable[[], object]) -> float:
    """Time of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--tiny", action="store_true", help="a small network, once: to see that it works")
    options = parser.parse_args()
    model = deepshare.zoo.build("resnet18" if options.tiny else "timm:resnet50").eval()
    size = (3, 32, 32) if options.tiny else SIZE
    first = seconds(lambda: deepshare.plan(model, size, "5%"))
    plan = deepshare.plan(model, size, "5%")
    figures = {
        "first plan": first,
        "second plan": seconds(lambda: deepshare.plan(model, size, "5%")),
        "share": seconds(lambda: deepshare.share(model, plan)),
        "one plain inference": min(seconds(lambda: model(torch.zeros(1, *size))) for _ in range(3)),
    }
    if options.json:
        print(json.dumps({"seconds": figures, "limit": LIMIT}))
    else:
        print(plan)
        for what, value in figures.items():
            print(f"{what:20} {value:6.2f} s")
    if first > LIMIT and not options.tiny:
        raise SystemExit(f"the first plan took {first:.2f} s, above the limit of {LIMIT:.0f} s")


if __name__ == "__main__":
    main()
