"""Logits of the committed runs, in float64 on a fixed image: `python -m tests.training.run.committed` writes them anew.

In float64 another processor or another order of additions changes the last digits alone, and no gate.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

import deepshare
from deepshare.training.run.checkpoint import read_weights

ROOT = Path(__file__).parents[3]
FILE = Path(__file__).with_suffix(".json")
PLACES = 8


def runs() -> Iterator[str]:
    """Folders with weights, below `results`."""
    return (
        str(file.parent.relative_to(ROOT / "results")) for file in sorted(ROOT.glob("results/**/model.safetensors"))
    )


def logits(name: str) -> dict[str, float | list[float]]:
    """Some logits of a run on one image, and their mean absolute value."""
    folder = ROOT / "results" / name
    size = read_weights(folder / "model.safetensors")[1].input_size
    image = torch.sin(torch.arange(torch.Size(size).numel(), dtype=torch.float64) * 0.7).view(1, *size)
    with torch.no_grad():
        result: Tensor = deepshare.load(folder).double()(image).flatten()
    return {"mean": float(result.abs().mean()), "logits": result[:: len(result) // PLACES][:PLACES].tolist()}


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: logits(name) for name in runs()}, indent=1) + "\n", encoding="utf-8")
