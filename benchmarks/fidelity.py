"""How near private inference comes to the plain network: a trained run on its test images.

    python benchmarks/fidelity.py runs/demo/shared                                  # 200 images with crypten
    python benchmarks/fidelity.py runs/demo/shared --engine spu-cheetah --images 20
    python benchmarks/fidelity.py RUN --data-dir DIR --json

Says the median and the largest difference of a logit, on how many images both have the same class, and how many images
are far off: one of whose logits differs by more than 0.1, as when a truncation or a gate went wrong.
"""

import argparse
import json
from pathlib import Path

import torch

from deepshare.private import plain
from deepshare.private.deployed import from_run, sample_images
from deepshare.private.engine import engine_names
from deepshare.private.infer import run

FAR = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--engine", default="crypten", choices=engine_names())
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--batch", type=int, default=50, help="images in one inference")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    program, _ = from_run(options.run)
    _, images = sample_images(options.run, options.images, options.data_dir)
    private = torch.cat([run(program, part, options.engine).logits for part in images.split(options.batch)]).double()
    expected = plain.evaluate(program, images)
    difference = (private - expected).abs()
    figures = {
        "engine": options.engine,
        "images": len(images),
        "median": float(difference.median()),
        "largest": float(difference.max()),
        "same_class": int((private.argmax(1) == expected.argmax(1)).sum()),
        "far_off": int((difference.amax(1) > FAR).sum()),
    }
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{options.engine}, {len(images)} images: logits differ by {figures['median']:.1e} (median)", end="")
    print(f" and {figures['largest']:.1e} (largest); same class on {figures['same_class']};", end="")
    print(f" {figures['far_off']} images far off")


if __name__ == "__main__":
    main()
