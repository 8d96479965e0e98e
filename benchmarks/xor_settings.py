"""What the paper leaves open about its checkerboard: the same seeds with other start values, sharpness and phases.

    python benchmarks/xor_settings.py --out results/xor      # ten minutes of one core

Writes settings.json: for each setting the networks of each kind that solve it.
"""

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path

import torch

from deepshare.study.xor.experiment import XorSettings, run

SETTINGS = (
    XorSettings(start="identity"),
    XorSettings(sharpness=1.0),
    XorSettings(gelu=0.5, switch=0.25),
    XorSettings(gelu=0.27, switch=0.41),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="two seeds and few steps: to see that it works")
    options = parser.parse_args()
    folder = options.out
    torch.set_num_threads(1)
    found = []
    for settings in SETTINGS:
        result = run(replace(settings, seeds=2, epochs=20) if options.tiny else settings).to_dict()
        solved = {name: method["solved"] for name, method in result["methods"].items()}
        found.append({"settings": asdict(settings), "solved": solved, "seconds": result["seconds"]})
        print(found[-1], flush=True)
    record = {"command": "python benchmarks/xor_settings.py --out results/xor", "torch": torch.__version__}
    (folder / "settings.json").write_text(json.dumps({**record, "found": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
