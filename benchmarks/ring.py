"""Exact products mod 2^64 and comparisons of the gate-sharing protocol, compared with torch's int64 in one run.

    OMP_NUM_THREADS=2 python benchmarks/ring.py [--images 1] [--json]

The products are those of all convolutions of ResNet-18 at 32x32, 0.555 billion per image: online, where one factor is a
plain weight, and offline, where both are arbitrary ring elements. torch's int64 computes one layer of each size. With
AVX-512 the protocol uses it; products by limbs, which other processors use, are listed for comparison. Their lower
bound is the time of float64 matrix products of the same sizes, one per limb. Times are the best of a few.
"""

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from deepshare.private.engines.gateshare.crypto import dcf
from deepshare.private.engines.gateshare.crypto.limb_matmul import (
    Geometry,
    PlainWeight,
    RingWeight,
    plain_weight,
    ring_weight,
)
from deepshare.private.engines.gateshare.crypto.ring import expand, fresh_seed, mask

# Input and output channels, size of the map, stride, kernel, and number of such layers.
LAYERS: list[tuple[int, ...]] = [
    *[(3, 64, 32, 1, 3, 1), (64, 64, 32, 1, 3, 4)],
    *[(64, 128, 32, 2, 3, 1), (64, 128, 32, 2, 1, 1), (128, 128, 16, 1, 3, 3)],
    *[(128, 256, 16, 2, 3, 1), (128, 256, 16, 2, 1, 1), (256, 256, 8, 1, 3, 3)],
    *[(256, 512, 8, 2, 3, 1), (256, 512, 8, 2, 1, 1), (512, 512, 4, 1, 3, 3)],
]
GATES, BITS = 6_144, 31


def best(work: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest call."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def ring(*shape: int) -> Tensor:
    return mask(fresh_seed(), shape)


def layer(images: int, shape: tuple[int, ...], repeats: int) -> dict[str, float]:
    """Time one layer with every method."""
    inward, out, size, stride, kernel, _ = shape
    geometry = Geometry((stride, stride), (kernel // 2, kernel // 2))
    x, weight = ring(images, inward, size, size), ring(out, inward, kernel, kernel)
    small = weight >> 52
    plain, full = plain_weight(small, geometry), ring_weight(weight, geometry)
    plain_limbs, full_limbs = PlainWeight(small, geometry), RingWeight(weight, geometry)
    assert torch.equal(plain(x), plain_limbs(x))
    assert torch.equal(full(x), full_limbs(x))
    rows = torch.rand(images * (size // stride) ** 2 * plain_limbs.limbs, inward * kernel**2, dtype=torch.float64)
    columns = torch.rand(out, inward * kernel**2, dtype=torch.float64).T
    return {
        "online": best(lambda: plain(x), repeats),
        "offline": best(lambda: full(x), repeats),
        "online_limbs": best(lambda: plain_limbs(x), repeats),
        "offline_limbs": best(lambda: full_limbs(x), repeats),
        "limit": best(lambda: rows @ columns, repeats),
        "int64": best(lambda: F.conv2d(x, small, stride=stride, padding=geometry.padding), 1),
    }


def products(layers: list[tuple[int, ...]], images: int, repeats: int) -> dict[str, float]:
    """Sum the figures of all layers."""
    seconds = dict.fromkeys(("online", "offline", "online_limbs", "offline_limbs", "limit", "int64"), 0.0)
    count = 0
    for shape in layers:
        inward, out, size, stride, kernel, times = shape
        count += times * images * inward * out * (size // stride) ** 2 * kernel**2
        for way, spent in layer(images, shape, repeats).items():
            seconds[way] += times * spent
    return {
        "online_seconds": seconds["online"],
        "offline_seconds": seconds["offline"],
        "online_gmac_s": count / seconds["online"] / 1e9,
        "offline_gmac_s": count / seconds["offline"] / 1e9,
        "int64_gmac_s": count / seconds["int64"] / 1e9,
        "online_over_int64": seconds["int64"] / seconds["online"],
        "offline_over_int64": seconds["int64"] / seconds["offline"],
        "online_over_limbs": seconds["online_limbs"] / seconds["online"],
        "offline_over_limbs": seconds["offline_limbs"] / seconds["offline"],
        "limbs_share_of_limit": seconds["limit"] / seconds["online_limbs"],
    }


def comparisons(repeats: int) -> dict[str, float]:
    """Gates per second, dealt and evaluated by one party."""
    thresholds, x = (expand(fresh_seed(), 8 * GATES).view(np.uint64) >> np.uint64(64 - BITS) for _ in range(2))
    first, second = (expand(fresh_seed(), 16 * GATES).view(np.uint64).reshape(GATES, 2) for _ in range(2))
    key = fresh_seed()[:16]
    keys = dcf.deal(thresholds, BITS, (first, second), key)
    dealing = best(lambda: dcf.deal(thresholds, BITS, (first, second), key), repeats)
    evaluating = best(lambda: dcf.evaluate(x, 0, first, keys, key), repeats)
    return {"dealt_gates_s": GATES / dealing, "evaluated_gates_s": GATES / evaluating}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1, help="images in a batch")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--tiny", action="store_true", help="the smallest layers, once: to see that it works")
    options = parser.parse_args()
    if options.tiny:
        options.repeats = 1
    layers = LAYERS[:1] if options.tiny else LAYERS
    figures = products(layers, options.images, options.repeats) | comparisons(options.repeats)
    if options.json:
        print(json.dumps({"threads": torch.get_num_threads(), "images": options.images} | figures))
        return
    print(f"ResNet-18's convolutions, {options.images} images, {torch.get_num_threads()} threads")
    for name, value in figures.items():
        print(f"{name:22} {value:12,.3f}")


if __name__ == "__main__":
    main()
