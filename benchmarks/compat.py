"""Conversion of many real networks, each compared with its original.

    python benchmarks/compat.py --out docs/compatibility.md

With --private only the column of private inference is checked again, in a fifth of the time.

With the identity plan (each site its own group, all channels prototypes, alpha 1, beta 0) the outputs must be
bit-identical to the original's, in eval and in train mode with the same seed. The number of gates must be the same, and
the gradients of the weights must agree. A model is either converted or refused with a reason.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from deepshare import count_gates, find_sites, plan, share, smooth_to_relu
from deepshare.errors import UnsupportedModelError
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.engine import find_engine
from deepshare.sharing.convert import relu6_to_relu
from deepshare.sharing.sites import Sites
from deepshare.zoo import build


@dataclass(frozen=True)
class Case:
    """Name of a model, the side of its images, and arguments that select ReLU."""

    name: str
    side: int = 64
    arguments: dict[str, Any] = field(default_factory=dict)


def _cases(library: str, names: str) -> list[Case]:
    return [Case(f"{library}:{name}") for name in names.split()]


SMALL = (
    Case("torchvision:resnet18"),
    Case("torchvision:googlenet"),
    Case("torchvision:mobilenet_v2"),
    Case("torchvision:squeezenet1_1"),
    Case("timm:dla46_c"),
    Case("timm:hrnet_w18_small", 32),
    Case("timm:repvgg_a0", 32),
    Case("smp:Unet/resnet18"),
)

MODELS = (
    *SMALL,
    Case("torchvision:inception_v3", 299),
    Case("timm:inception_v3", 96),
    Case("timm:inception_v4", 96),
    Case("timm:inception_resnet_v2", 96),
    Case("timm:nasnetalarge", 96),
    Case("timm:pnasnet5large", 96),
    Case("timm:efficientvit_m0", 224),
    Case("smp:PAN/resnet18", 128),
    Case("timm:cspresnet50", arguments={"act_layer": "relu"}),
    Case("timm:cspresnext50", arguments={"act_layer": "relu"}),
    *_cases(
        "torchvision",
        """
        alexnet vgg11 vgg16_bn resnet50 resnext50_32x4d wide_resnet50_2 densenet121 regnet_x_400mf regnet_y_400mf
        shufflenet_v2_x0_5 shufflenet_v2_x1_0 squeezenet1_0 mnasnet0_5 mnasnet1_0 mobilenet_v3_small
        fcn_resnet50 deeplabv3_resnet50 lraspp_mobilenet_v3_large
        """,
    ),
    *_cases(
        "timm",
        """
        resnet18 resnet26d resnet50 resnet101 resnetaa50 resnetblur18 resnetrs50 resnetv2_50 resnetv2_50x1_bit
        resnext50_32x4d wide_resnet50_2 seresnet18 seresnext26d_32x4d ecaresnet26t gcresnet50t skresnet18
        legacy_seresnet18 legacy_senet154 resnest14d resnest26d res2net50_26w_4s res2net50_14w_8s res2next50
        densenet121 densenetblur121d vgg16_bn mobilenetv1_100 mobilenetv2_100 mobilenetv3_small_100
        mobilenetv4_conv_small mnasnet_100 semnasnet_100 spnasnet_100 fbnetc_100 efficientnet_lite0 efficientnet_es
        regnetx_002 regnety_002 dla34 dla60x dla60_res2net dpn48b dpn68 dpn92 hrnet_w18_small_v2 xception41
        legacy_xception selecsls42b selecsls60 vovnet39a ese_vovnet19b_dw vgg11_bn repvgg_b0 mobileone_s0 ghostnet_100
        repghostnet_100 hardcorenas_a hardcorenas_f hgnet_tiny tresnet_m gernet_s nf_resnet50 fasternet_s lcnetv2_small
        efficientvit_b0
        """,
    ),
    *_cases(
        "smp",
        """
        UnetPlusPlus/resnet18 MAnet/resnet18 Linknet/resnet18 FPN/resnet18 PSPNet/resnet18 DeepLabV3/resnet18
        DeepLabV3Plus/resnet18 UPerNet/resnet18 Unet/vgg11_bn Unet/densenet121 Unet/se_resnet50
        Unet/mobilenet_v2 Unet/xception Unet/dpn68 FPN/timm-skresnet18 Linknet/resnext50_32x4d
        """,
    ),
)

TINY = "timm:resnet18"

INTRODUCTION = """\
Written by `python benchmarks/compat.py --out docs/compatibility.md`. Each model is built with random weights and ReLU
instead of ReLU6, and shared with the identity plan: each ReLU call is its own group and all its channels are
prototypes. *Equal* means that the outputs are bit-identical in eval and in train mode, that the gate count is the
number of ReLUs of the original, that the gradients of the weights agree, and that gradients reach every alpha and
beta. *Module*, *reused* and *function* count the ReLU calls of separate modules, of modules called more than once,
and of functions. Parameters that a library initialises to zero get random values first: at exactly zero a gate is
open while the gradient of torch's ReLU is zero, and a zero-initialised branch feeds such zeros to the next ReLU.
*Private* says whether the model is translated for private inference, with equal results on random images, and
accepted by engine gateshare, after `smooth_to_relu` and sharing where it has sigmoids (*smooth*); else the first thing
that is refused. *crypten* says the same of engine crypten. Seconds are for finding, planning and sharing, on one
thread.
"""


@dataclass(frozen=True)
class Row:
    """Result for one model; `trouble` is empty if everything is equal."""

    case: Case
    sites: int = 0
    relus: int = 0
    reached: str = ""
    refused: str = ""
    trouble: str = ""
    seconds: float = 0.0
    private: str = ""
    crypten: str = ""

    @property
    def result(self) -> str:
        """Cell of the table."""
        return f"refused: {self.refused}" if self.refused else self.trouble or "equal"


def check(case: Case) -> Row:
    """Convert one model and compare it with the original."""
    torch.manual_seed(0)
    model = relu6_to_relu(build(case.name, **case.arguments))
    _wake(model)
    size = (3, case.side, case.side)
    started = time.perf_counter()
    try:
        sites = find_sites(model, size)
        shared = share(model, plan(model, size, "100%", layer_sharing=False))
    except UnsupportedModelError as error:
        more = f" (and {len(error.problems) - 1} more)" if len(error.problems) > 1 else ""
        seconds = time.perf_counter() - started
        return Row(case, 0, 0, "", error.problems[0] + more, "", seconds, *private(model, size))
    seconds = time.perf_counter() - started
    trouble = _trouble(model, shared, sites)
    del shared
    return Row(case, len(sites), sites.neurons, _reached(sites), "", trouble, seconds, *private(model, size))


def check_private(case: Case) -> tuple[str, str]:
    """Say whether a model runs privately on either engine, without sharing its gates."""
    torch.manual_seed(0)
    model = relu6_to_relu(build(case.name, **case.arguments))
    _wake(model)
    return private(model, (3, case.side, case.side))


def private(model: nn.Module, size: tuple[int, int, int]) -> tuple[str, str]:
    """Say whether gateshare and crypten take a model: as it is, with ReLUs for smooth activations, or not."""
    _calm(model.eval())
    smooth, found = "", _problems(model, size)
    if any("--smooth-to-relu" in problem for problem in found["gateshare"]):
        smooth = ", smooth"
        try:
            changed = smooth_to_relu(model)
            found = _problems(share(changed, plan(changed, size, "100%", layer_sharing=False)), size)
        except UnsupportedModelError as error:
            found = dict.fromkeys(found, error.problems)
    gateshare, crypten = (f"refused: {problems[0]}" if problems else "" for problems in found.values())
    return gateshare or f"runs{smooth}", crypten or f"yes{smooth}"


def _problems(model: nn.Module, size: tuple[int, int, int]) -> dict[str, Sequence[str]]:
    """What either engine refuses."""
    found: dict[str, Sequence[str]] = {"gateshare": (), "crypten": ()}
    try:
        program = translate(model, size)
    except UnsupportedModelError as error:
        return dict.fromkeys(found, error.problems)
    for engine in found:
        try:
            find_engine(engine).check(program, {})
        except UnsupportedModelError as error:
            found[engine] = error.problems
    return found


def _calm(model: nn.Module) -> None:
    """Keep the numbers of deep random networks finite: branches as after training, not as drawn."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_var is not None:
            module.running_var.fill_(4.0)


def _wake(model: nn.Module) -> None:
    """Randomise parameters initialised to zero: a zero branch would hide errors, and gradients differ at zero.

    At exactly zero a gate is open, while the gradient of torch's ReLU is zero.
    """
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.uniform_(parameter, -0.5, 0.5)


def _reached(sites: Sites) -> str:
    kinds = Counter(site.kind for site in sites)
    return ", ".join(f"{number} {kind}" for kind, number in kinds.items())


def _trouble(model: nn.Module, shared: nn.Module, sites: Sites) -> str:
    gates = count_gates(shared, sites.input_size)
    if gates != sites.neurons:
        return f"{gates:,} gates for {sites.neurons:,} ReLUs"
    images = torch.randn(2, *sites.input_size)
    for mode in ("eval", "train"):
        with torch.set_grad_enabled(mode == "train"):
            expected, found = (_run(network.train(mode == "train"), images) for network in (model, shared))
        if not all(torch.equal(a, b) for a, b in zip(expected, found, strict=True)):
            return f"another output in {mode} mode"
        if not all(output.isfinite().all() for output in expected):
            return f"no finite output in {mode} mode"
    return _gradient_trouble(model, shared, expected, found)


def _run(network: nn.Module, images: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    return [leaf for leaf in tree_leaves(network(images)) if isinstance(leaf, Tensor)]


def _gradient_trouble(model: nn.Module, shared: nn.Module, expected: list[Tensor], found: list[Tensor]) -> str:
    for outputs in (expected, found):
        torch.stack([output.square().mean() for output in outputs]).sum().backward()
    new = dict(shared.named_parameters())
    without = [name for name, value in new.items() if name.endswith(("alpha", "beta")) and value.grad is None]
    if without:
        return f"no gradient for {', '.join(without)}"
    pairs = [(value.grad, new[name].grad) for name, value in model.named_parameters() if value.grad is not None]
    old_gradient, new_gradient = (torch.cat([torch.flatten(g) for g in side]) for side in zip(*pairs, strict=True))
    distance = ((old_gradient - new_gradient).norm() / old_gradient.norm()).item()
    return "" if distance < 1e-5 else f"gradients differ by {distance:.0e}"


def report(rows: Sequence[Row]) -> str:
    """Format the table and its totals as Markdown."""
    equal = sum(row.result == "equal" for row in rows)
    lines = [
        "# Compatibility",
        "",
        INTRODUCTION,
        f"{equal} of {len(rows)} models are equal, {sum(bool(row.refused) for row in rows)} refused. "
        f"{sum(row.private == 'runs' for row in rows)} run privately on gateshare as they are, "
        f"{sum(row.private == 'runs, smooth' for row in rows)} more without their sigmoids; "
        f"{sum(row.crypten.startswith('yes') for row in rows)} on crypten.",
        "",
        "| model | input | sites | ReLUs | reached as | result | private | seconds | crypten |",
        "|---|---|--:|--:|---|---|---|--:|---|",
    ]
    return "\n".join([*lines, *(_line(row) for row in rows), ""])


def _line(row: Row) -> str:
    arguments = "".join(f", {key}={value}" for key, value in row.case.arguments.items())
    cells = [
        f"{row.case.name}{arguments}",
        f"3x{row.case.side}x{row.case.side}",
        f"{row.sites:,}",
        f"{row.relus:,}",
        row.reached,
        row.result,
        row.private,
        f"{row.seconds:.1f}",
        row.crypten,
    ]
    return f"| {' | '.join(cells)} |"


def parse(text: str) -> dict[str, Row]:
    """Read the rows of a report, by model."""
    cases = {_line(Row(case)).split(" | ")[0]: case for case in MODELS}
    found = {}
    for line in text.splitlines():
        first, *cells = line.split(" | ")
        if (case := cases.get(first)) is not None:
            _, sites, relus, reached, result, private, seconds, *crypten = cells
            refused = result.removeprefix("refused: ") if result.startswith("refused: ") else ""
            trouble = "" if refused or result == "equal" else result
            counts, taken = (int(sites.replace(",", "")), int(relus.replace(",", ""))), float(seconds.rstrip(" |"))
            words = private, "".join(crypten).rstrip(" |")
            found[case.name] = Row(case, *counts, reached, refused, trouble, taken, *words)
    return found


def run(
    cases: Iterable[Case], known: Mapping[str, Row] | None = None, tell: Callable[[str], None] = print
) -> list[Row]:
    """Check all cases and report one line per case; where rows are known, what runs privately alone."""
    rows = []
    for case in cases:
        if known is None:
            rows.append(check(case))
        else:
            gateshare, crypten = check_private(case)
            rows.append(replace(known[case.name], private=gateshare, crypten=crypten))
        tell(_line(rows[-1]))
    return rows


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="share() over many real networks, against their originals")
    parser.add_argument("--out", type=Path, help="write the table to this Markdown file")
    parser.add_argument("--only", default="", help="only models whose name contains this")
    parser.add_argument("--private", action="store_true", help="check private inference again, keep the rest of --out")
    parser.add_argument("--tiny", action="store_true", help="one model: to see that it works")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.only = TINY
    if arguments.private and (arguments.out is None or arguments.only):
        parser.error("--private keeps the other columns of the whole table: give --out, and no --only")
    known = parse(arguments.out.read_text()) if arguments.private else None
    if known is not None and (missing := [case.name for case in MODELS if case.name not in known]):
        parser.error(f"{arguments.out} lacks {missing[0]}: leave --private out")
    rows = run((case for case in MODELS if arguments.only in case.name), known)
    text = report(rows)
    print(next(line for line in text.splitlines() if "models are equal" in line))
    if arguments.out:
        arguments.out.write_text(text)
    if any(row.trouble for row in rows) or 60 * sum(row.result == "equal" for row in rows) < 58 * len(rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
