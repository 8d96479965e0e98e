"""Agreement of private inference with the plain network, for a trained run on its test images.

    python benchmarks/fidelity.py runs/demo/shared                                  # 200 images with crypten
    python benchmarks/fidelity.py runs/demo/shared --engine spu-cheetah --images 20
    python benchmarks/fidelity.py RUN --engine gateshare --images 1000 --data-dir DIR --json
    python benchmarks/fidelity.py RUN --engine gateshare-2pc --images 1000 --batch 25 --data-dir DIR --keep FILE
    python benchmarks/fidelity.py RUN --engine gateshare-2pc --clear --images 1000 --data-dir DIR
    python benchmarks/fidelity.py RUN --engine gateshare --clear --comparison-bits calibrated --images 1000

Prints the median and the maximum difference of a logit, the number of images on which the classes agree, and the number
of outliers: images with a logit that differs by more than 0.1, as after a failed truncation or a wrong gate. For
segmentation it counts pixels. For gateshare it also prints the number of gates flipped by rounding, and of images with
the same class before the server adds its noise. No party sees these in private inference, so they come from the same
fixed-point evaluation in the clear, with shares drawn like a client's. With --clear that is all, and no party runs: the
steps of gateshare and gateshare-2pc round alike, given the same shares, so both give the same figures.

Each batch is an inference of its own. With --keep its logits go to a file at once, and after a kill the same command
goes on after the last batch, at the same commit; the file is deleted at the end. Progress is on stderr.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save

from deepshare.files import write_atomically
from deepshare.private.api import from_run, run, sample_images, training_images
from deepshare.private.engines.gateshare import reference as fixed
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.fixedpoint import calibrate, comparison_bits_of
from deepshare.private.engines.gateshare.protocols.gate import GateStep
from deepshare.private.engines.gateshare.protocols.schedule import Schedule
from deepshare.private.engines.gateshare.protocols.truncation import TruncationStep
from deepshare.private.engines.gateshare.server import weights_digest
from deepshare.private.ir.program import Program
from deepshare.private.runtime.engine import engine_names
from deepshare.training.run.folder import run_folder

FAR = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--engine", default="crypten", choices=engine_names())
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--batch", type=int, default=50, help="images in one inference")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--clear", action="store_true", help="gateshare: fixed point in the clear alone, no parties")
    parser.add_argument("--samples", type=int, default=0, help="gateshare --clear: training images to calibrate on")
    parser.add_argument("--comparison-bits", help="gateshare: a number, or calibrated; all bits without")
    parser.add_argument("--keep", type=Path, help="file for the logits so far, to go on with after a kill")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="two images: to see that it works")
    options = parser.parse_args()
    if options.tiny:
        options.images = 2
    if options.clear and not options.engine.startswith("gateshare"):
        parser.error(f"--clear is for gateshare and gateshare-2pc, not {options.engine}")
    if options.samples and not options.clear:
        parser.error("--samples is for --clear: parties calibrate on synthetic images")
    if options.comparison_bits and options.engine != "gateshare":
        parser.error(f"--comparison-bits is for gateshare, not {options.engine}")
    own = {"comparison_bits": options.comparison_bits} if options.comparison_bits else {}
    folder = run_folder(options.run)
    program, _ = from_run(folder)
    _, images = sample_images(folder, options.images, options.data_dir)
    if options.clear:
        samples = training_images(folder, options.samples, options.data_dir) if options.samples else None
        steps = steps_of(program, options.engine, own, samples)
        clear(steps, images, options.engine, options.batch, as_json=options.json)
        return
    private = privately(program, images, options.engine, own, options.batch, options.keep)
    expected = program.evaluate(images)
    difference = (private - expected).abs()
    figures: dict[str, float | str] = {
        "engine": options.engine,
        "images": len(images),
        "classified": expected[:, 0].numel(),
        "median": float(difference.median()),
        "largest": float(difference.max()),
        "same_class": int((private.argmax(1) == expected.argmax(1)).sum()),
        "far_off": int((difference.amax(1) > FAR).sum()),
    }
    if options.engine.startswith("gateshare"):
        steps = steps_of(program, options.engine, own)
        found = [in_the_clear(steps, part) for part in images.split(options.batch)]
        figures["gates"] = len(images) * program.comparisons
        figures["flipped"] = sum(flipped for flipped, _ in found)
        figures["same_class_before_noise"] = sum(same for _, same in found)
    if options.keep:
        options.keep.unlink(missing_ok=True)
    if options.json:
        print(json.dumps(figures))
        return
    print(f"{options.engine}, {len(images)} images: logits differ by {figures['median']:.1e} (median)", end="")
    what = "images" if expected.dim() == 2 else "pixels"
    print(f" and {figures['largest']:.1e} (largest); same class on {figures['same_class']:,}", end="")
    print(f" of {figures['classified']:,} {what}; {figures['far_off']:,} {what} far off")
    if "flipped" in figures:
        print(f"{figures['flipped']} of {figures['gates']:,} gates are flipped by rounding;", end="")
        print(f" before the noise the class is the same on {figures['same_class_before_noise']:,}")


def privately(
    program: Program, images: torch.Tensor, engine: str, options: dict[str, str], batch: int, keep: Path | None
) -> torch.Tensor:
    """Logits of all images, with parties that begin anew for each batch; those in a file are not asked again."""
    asked = hashlib.sha256(images.numpy().tobytes() + weights_digest(program))
    about = {"engine": engine, "options": json.dumps(options), "images": asked.hexdigest(), "commit": commit()}
    found: list[torch.Tensor] = []
    if keep is not None and keep.exists():
        with safe_open(keep, "pt") as file:
            found = [file.get_tensor("logits")] if file.metadata() == about else []
    before, began = sum(map(len, found)), time.monotonic()
    for part in images[before:].split(batch):
        found.append(run(program, part, engine, options).logits.double())
        done = sum(map(len, found))
        if keep is not None:
            keep.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(keep, save({"logits": torch.cat(found)}, about))
        left = (time.monotonic() - began) / (done - before) * (len(images) - done)
        print(f"{done:,} of {len(images):,} images, {left // 60:.0f}:{left % 60:02.0f} left", file=sys.stderr)
    return torch.cat(found)


def commit() -> str:
    """The commit of the code that runs."""
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()


def clear(steps: Schedule, images: torch.Tensor, engine: str, batch: int, *, as_json: bool) -> None:
    """Print what comes from the evaluation in the clear."""
    torch.manual_seed(0)  # the same shares for all engines
    flipped, same = map(sum, zip(*(in_the_clear(steps, part) for part in images.split(batch)), strict=True))
    gates, numbers = len(images) * steps.program.comparisons, steps.number_format
    if as_json:
        figures = {"gates": gates, "flipped": flipped, "same_class_before_noise": same}
        bits = sorted({step.bits for step in steps.steps if isinstance(step, GateStep) and step.leads})
        print(json.dumps({"engine": engine, "images": len(images), **figures, "bits": [bits[0], bits[-1]]}))
        return
    if numbers.compared is not None:
        for step in (step for step in steps.steps if isinstance(step, GateStep) and step.leads):
            print(f"{steps.name(step.number)}: {step.bits} bits, {step.dropped} lower ones dropped", end="; ")
        print(f"of numbers with {numbers.fraction} fractional bits")
    print(f"{engine} in the clear, {len(images)} images: {flipped} of {gates:,} gates are flipped by rounding;", end="")
    print(f" before the noise the class is the same on {same:,}")


def steps_of(program: Program, engine: str, options: dict[str, str], samples: torch.Tensor | None = None) -> Schedule:
    """The steps of an engine, with its number format."""
    bits = options.get("comparison_bits")
    numbers = calibrate(program, samples, None if bits is None else comparison_bits_of(bits))
    return schedule(program, numbers, dealt=engine == "gateshare")


def in_the_clear(steps: Schedule, images: torch.Tensor) -> tuple[int, int]:
    """Count flipped gates and images of the same class in fixed point without noise."""
    program = steps.program
    shares = {
        number: torch.randint(-(2**63), 2**63 - 1, (len(images), *step.shape))
        for number, step in enumerate(steps.steps)
        if isinstance(step, TruncationStep)
    }
    exact, found = {}, {}
    expected = program.evaluate(images, lambda number, value: exact.update({number: value}))
    leaders = [step for step in steps.steps if isinstance(step, GateStep) and step.leads]
    thresholds = {
        step.number: step.thresholds(torch.randint(1 << step.dropped, (len(images) * step.comparisons,)))
        for step in leaders
        if step.dropped
    }
    logits = fixed.evaluate(steps, images, shares, lambda number, value: found.update({number: value}), thresholds)
    count = 0
    for step in leaders:
        source = program.operations[step.operation].inputs[0]
        first, second = (step.compared(step.picked(value)) for value in (exact[source], found[step.inputs[0]]))
        count += int(((first >= 0) != (second >= thresholds.get(step.number, 0))).sum())
    return count, int((logits.argmax(1) == expected.argmax(1)).sum())


if __name__ == "__main__":
    main()
