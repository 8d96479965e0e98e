"""Cost of data loading: batches and augmentation as a fraction of a `cifar100-small` training step.

Run `python benchmarks/feeding.py`, with `--data-dir` for the real CIFAR-100; otherwise images are noise of the same
shape, which costs the same. The two are timed alternately in one run, so that load on the machine affects both alike.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn

from deepshare.data import Augment, ImageSet, Jitter, batches, load
from deepshare.zoo import resnet18

ALLOWED = 0.05
AUGMENT = Augment(crop_padding=4, flip=True, jitter=Jitter(brightness=0.2, contrast=0.2, saturation=0.2, hue=0.05))


def noise(count: int) -> ImageSet:
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
    names = tuple(map(str, range(100)))
    return ImageSet("noise", images, torch.arange(count) % 100, names, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def measure(train: ImageSet, batch_size: int, steps: int) -> tuple[list[float], list[float]]:
    model = resnet18(num_classes=100, width=16).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    feeding, training = [], []
    feed = iter(batches(train, batch_size, augment=AUGMENT, shuffle=True, drop_last=True))
    for _ in range(steps):
        begin = time.perf_counter()
        images, labels = next(feed)
        fed = time.perf_counter()
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        feeding.append(fed - begin)
        training.append(time.perf_counter() - fed)
    return feeding[3:], training[3:]


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of feeding as a share of a cifar100-small training step.")
    parser.add_argument("--data-dir", type=Path, help="where cifar-100-python is; without it images are noise")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="two steps on noise: to see that it works")
    options = parser.parse_args()
    if options.tiny:
        options.steps, options.batch_size = 2, 8
    train = load("cifar100", options.data_dir).train if options.data_dir else noise(64 if options.tiny else 45_000)
    feeding, training = measure(train, options.batch_size, options.steps + 3)
    seconds, step = min(feeding), min(training)  # load on the machine only adds time
    result = {
        "feeding_ms": round(1e3 * seconds, 3),
        "step_ms": round(1e3 * step, 3),
        "share": round(seconds / (seconds + step), 5),
        "allowed": ALLOWED,
        "threads": torch.get_num_threads(),
        "batch_size": options.batch_size,
    }
    if options.json:
        print(json.dumps(result))
    else:
        print(f"feeding {result['feeding_ms']} ms, step {result['step_ms']} ms: {100 * result['share']:.2f}% of a step")
    raise SystemExit(result["share"] > ALLOWED and not options.tiny)


if __name__ == "__main__":
    main()
