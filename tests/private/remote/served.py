"""A process that serves a network in memory, from Python: `served.py POOL` says its address, and when it is over."""

import sys

import torch
from torch import nn

import deepshare
from deepshare.data import About

CLASSES = ("cat", "dog", "house", "tree")
ABOUT = About(size=(3, 16, 16), mean=(0.5,) * 3, std=(0.25,) * 3, classes=CLASSES)
GATES = 600


def network() -> nn.Module:
    """The same network every time."""
    torch.manual_seed(7)
    model = deepshare.zoo.resnet18(width=4, num_classes=len(CLASSES)).eval()
    return deepshare.share(model, deepshare.plan(model, budget=GATES, input_size=ABOUT.size))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    deepshare.private.serve(
        {"mine": (network(), ABOUT)},
        pool=sys.argv[1],
        port=0,
        ready=lambda server: say(server.address),
    )
    say("over")
