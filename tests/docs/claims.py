"""What the pages say of studies and trained networks: each sentence with figures, and where these come from.

A claim is the start of a sentence and its figures in their order, recomputed from the committed records. Numbers that
only name a setting are written as they are.
"""

import math
import re
from collections.abc import Callable
from functools import cache
from statistics import median
from typing import Any

import pytest

from deepshare import plan, share, zoo
from deepshare.data.images import height_and_width
from deepshare.private.cost import predict
from deepshare.private.engines.gateshare.compile import schedule
from deepshare.private.engines.gateshare.fixedpoint import predicted_format
from deepshare.private.engines.gateshare.preprocessing.spare_lots import unusable
from deepshare.private.ir.trace import translate
from deepshare.sharing.sites import find_sites
from deepshare.study.compare.study_file import GELU_TEACHER, TEACHER
from deepshare.study.published import paper as published
from deepshare.training.build import budget_of, plain_network
from deepshare.training.catalog import Finished
from deepshare.training.recipe.files import load_recipe
from tests.docs.pages import DOCS
from tests.docs.records import content, fair, last_line, percent, pools, run, small

Claims = dict[str, list[str]]

CIFAR, CAMVID = "cifar100-small", "camvid-small"
TUNED, SQUARES = "deepshare-tuned", "deepshare-square"


def found() -> Claims:
    """docs/comparators.md, Found."""
    s = small()
    least, middle, most = (s.share(budget) for budget in (1536, 6144, 12288))
    seeds = [float(seed) for seed in s.seeds("deepshare", 1536)]
    return {
        "The study [`] gives every": [str(fair().study.epochs)],
        "DeepShare from scratch learns": [str(fair().row(name, None).test) for name in (GELU_TEACHER, TEACHER)],
        "The study [`]: 20,000": ["20,000", str(s.study.epochs)],
        "AutoReP, SNL, SENet, spatial": s.epochs("teacher", None),
        "And 1.25% of the gates": [least, f"{16**2 + 32**2 + 8**2 + 4**2:,}", "1,536"],
        "Three seeds of DeepShare": [f"{max(seeds) - min(seeds):.1f}"],
        "- **The paper's order.**": [middle, *(s.one(m, 6144) for m in ("spatial", "hybrenet", "senet"))],
        "DeepShare as in the paper, first": [
            *(least, most, least, *s.three("deepshare", 1536), *s.three("autorep", 1536)),
            *(most, s.one("deepshare", 12288), s.one("autorep", 12288), *s.pairs("10.00%")),
        ],
        "- **Length matters most.**": [
            *("45,000", least, s.one("deepshare", 1536, "full"), *s.epochs("deepshare", 1536, "full")),
            *(f"{run(f'{CIFAR}/gates-1.25').test:.2f}", *map(str, run(f"{CIFAR}/gates-1.25").epochs.values())),
        ],
        "- **Starting from the teacher**": [
            *(s.one("deepshare-fitted", 1536), "1", "0", s.one("deepshare-started", 1536)),
        ],
        "Fitted, and taught": [
            *(*s.three(TUNED, 1536), least, *s.three(TUNED, 6144), middle, *s.three(TUNED, 12288), most),
        ],
        "Against DeepShare from scratch": s.epochs("teacher", None),
        "- **With squares**": [
            *(least, *s.three(SQUARES, 1536), *s.three("autorep", 1536)),
            *(middle, *s.three(SQUARES, 6144), *s.three("autorep", 6144)),
            *(most, s.one(SQUARES, 12288), s.one("autorep", 12288)),
            *("45,000", least, s.one(SQUARES, 1536, "full"), s.one("autorep", 1536, "full")),
        ],
        "- **Private inference**": [
            *(least, *s.private("deepshare", 1536), *s.private(SQUARES, 1536)),
            *(*s.private("autorep", 1536), *s.private("snl", 1536)),
        ],
        "- **The budget by": [*s.three("sensitivity", 1536), *s.three("deepshare", 1536)],
        "- **Other options**": [
            *(least, s.one("deepshare-taught", 1536), s.one("data-leader", 1536), s.one("annealed", 1536)),
            *(s.one("learned-pi", 1536), "1", "0", s.one("deepshare-identity", 1536)),
        ],
        "Patches of 2x2": [s.one("deepshare-tuned-spatial", 1536)],
        "- **The paper's ablations**": [
            middle,
            *(s.one(m, 6144) for m in ("deepshare", "no-affine", "no-layer-sharing", "no-budget")),
        ],
        "Without replicates it is": [s.one("trimmed", 6144)],
        "Without the GELU phase it is": [s.one("no-gelu", 6144), *s.epochs("no-gelu", 6144)],
        **pooled(),
        "- **DELPHI** has": [s.seeds("delphi", 6144)[0], middle, *set(s.seeds("delphi", 6144)[1:])],
        "Their code, put into": ["45.94", s.seeds("autorep", 1536)[-1], "1,536", "0"],  # says that it has no record
    }


def pooled() -> Claims:
    """docs/comparators.md, Found: the study pools."""
    s, names = pools(), ("exact", "shared", "avg", "stage")
    exact, shared, average, stage = (s.row(name, 2048).outcomes[0] for name in names)
    costs = [outcome.private for outcome in (exact, shared, average, stage) if outcome.private]
    assert costs[2].rounds == costs[3].rounds
    return {
        "- **Max-pooling and groups": ["2,048", *s.epochs("avg", 2048), *s.epochs("teacher", None)],
        "Exact max-pooling, with": [
            *(f"{exact.pool_gates:,}", *s.mean("exact", 2048), str(shared.pool_gates), *s.mean("shared", 2048)),
            *s.mean("avg", 2048),
        ],
        "Before an image": [f"{(cost.dealt or 0) / 1e6:.1f}" for cost in costs[:3]],
        "Groups of a stage": [
            *(*s.mean("stage", 2048), str(costs[3].in_a_row), str(costs[2].in_a_row), str(costs[3].rounds)),
        ],
    }


def readme() -> Claims:
    """README.md."""
    paper = published.load()

    def line(name: str) -> list[str]:
        recipe = load_recipe(name)
        gates = int(budget_of(recipe).gates)
        table = paper.find(recipe.model.name, recipe.data.name)
        assert table is not None
        neurons = find_sites(plain_network(recipe, "plain"), (3, *height_and_width(recipe.data.image_size))).neurons
        least = min((row for row in table.rows if row.method == published.OURS), key=lambda row: row.gates)
        rounded = pytest.approx([table.baseline.gates, least.gates], rel=1e-4)  # by the paper
        assert [neurons, gates] == rounded
        share = f"{100 * gates / neurons:.1f}".removesuffix(".0")
        scores = [f"{row.score:g}" for row in (table.baseline, least)]
        return [f"{neurons:,}", f"{gates:,}", share, *scores]

    equal, networks, runs, *_ = translated()
    return {
        "With Python": ["3.11"],
        "Of 117 networks": [networks, equal, runs],
        "<img src": ["440"],
        "| ResNet-18, CIFAR-100": line("cifar100-resnet18-6k"),
        "| WRN-22-8, CIFAR-100": line("cifar100-wrn22-8-60k"),
        "| ResNet-18, Tiny-ImageNet": line("tiny-imagenet-resnet18-30k"),
        "| DeepLabV3-MobileNetV2": line("ade20k-deeplabv3-2556k"),
        "The method is by": ["2026"],
    }


def results() -> Claims:
    """docs/results.md, Findings."""
    s = small()
    camvid = [run(f"{CAMVID}/{name}") for name in ("plain", "gates-10", "gates-3")]
    plain, tenth, least = (run(f"{CIFAR}/{name}") for name in ("plain", "gates-10", "gates-1.25"))
    same = content("cifar100-small/fidelity.json")
    return {
        "| [Bytes with crypten]": ["6,000", *activations()],
        "| [Same class in private]": [str(same["same_class"]), f"{same['images']:,}"],
        "| [Networks that convert]": translated(),
        "| [CIFAR-100]": [
            *(f"{plain.test:.2f}", f"{plain.gates:,}", epochs(plain)),
            *(epochs(least), f"{tenth.test:.2f}", s.share(tenth.gates)),
            *(f"{least.test:.2f}", s.share(least.gates)),
        ],
        "| [Segmentation]": [
            *(epochs(camvid[0]), f"{camvid[0].test:.2f}", f"{camvid[0].gates:,}"),
            *(f"{camvid[1].test:.2f}", "10", f"{camvid[2].test:.2f}", "3"),
            *(f"{entry.validation:.2f}" for entry in camvid),
        ],
        "| [XOR]": [xor_solved("deepshare"), "64"],
    }


def measured() -> Claims:
    """docs/measurements.md, outside its measured parts."""
    same, least = content("cifar100-small/fidelity.json"), run(f"{CIFAR}/gates-1.25")
    equal, networks, runs, _, smooth = translated()
    return {
        "The load is": ["2"],
        "One server of": ["16", "1,536"],
        "ResNet-18 of width 16": ["16", "1,536"],
        "The paper's column": ["6"],
        "- With 1% of its gates": ["1", "35,525"],
        "So it has": ["1.6"],
        "- DeepLabV3": ["2,555,904"],
        "A server would hold a lot": large_lot(),
        "ResNet-18 at 32x32 with 6,000": ["6,000", *activations()],
        "On 1,000 test images of CIFAR-100 with": [
            *(f"{same['images']:,}", f"{least.gates:,}", f"{same['median']:.4f}", str(same["same_class"])),
        ],
        "115 of 117": [equal, networks],
        "106 of the 117": [runs, networks, smooth],
    }


def large_lot() -> list[str]:
    """Gigabytes of a server's lot for DeepLabV3 at 512x512, and of what it holds between; most lots are unusable."""
    model = zoo.deeplabv3_mobilenetv2()
    size = (3, 512, 512)
    program = translate(share(model, plan(model, size, 2_555_904)), size, compare=False)
    steps = schedule(program, predicted_format(program, None))
    assert unusable(steps) > 0.5
    held = sum(step.held_bytes for step in steps.steps)
    return [f"{steps.lot_bytes(1, 'server') / 1e9:.1f}", f"{held / 1e9:.1f}"]


@cache
def activations() -> list[str]:
    """Megabytes and rounds of the activations of ResNet-18 with 6,000 gates on crypten, beside those with all ReLUs."""
    model = zoo.resnet18(num_classes=100)
    size = (3, 32, 32)
    few = predict(share(model, plan(model, size, 6_000)), size, "crypten").activations
    every = predict(model, size, "crypten").activations
    sent, sent_by_all = few.server_bytes, every.server_bytes
    return [f"{sent / 1e6:.1f}", f"{sent_by_all / sent:.0f}", str(few.rounds), str(every.rounds)]


def translated() -> list[str]:
    """Networks that are equal after sharing, and those that gateshare runs, from the rows of the page."""
    rows = re.findall(r"^\| \S+:.*", (DOCS / "compatibility.md").read_text(encoding="utf-8"), re.MULTILINE)
    equal = sum("| equal |" in row for row in rows)
    runs, smooth = (sum(f"| {cell} |" in row for row in rows) for cell in ("runs", "runs, smooth"))
    return [str(equal), str(len(rows)), str(runs + smooth), str(len(rows)), str(smooth)]


def cifar() -> Claims:
    """results/cifar100-small/README.md."""
    names = ("plain", "gates-10", "gates-1.25", "start-uniform", "start-identity")
    plain, tenth, least, uniform, identity = (run(f"{CIFAR}/{name}") for name in names)
    teacher, s, same = last_line(f"{CIFAR}/teacher"), small(), content(f"{CIFAR}/fidelity.json")
    solved = {entry["settings"]["start"]: entry["solved"] for entry in content("xor/settings.json")["found"]}
    return {
        "Recipe `: 122,880": [
            *(f"{plain.gates:,}", "0", "45,000", "5,000", epochs(least), *map(str, least.epochs.values())),
            str(teacher["epoch"]),
        ],
        "| `, all ReLUs": [epochs(plain), f"{plain.gates:,}", *scores(plain)],
        "| ` | 12,288": [f"{tenth.gates:,}", s.share(tenth.gates), *scores(tenth)],
        "| `, with its weights": [f"{least.gates:,}", s.share(least.gates), *scores(least)],
        "| their teacher": [str(teacher["epoch"]), percent(teacher["val_accuracy"])],
        "**Start values": ["10,000", f"{uniform.gates:,}"],
        "| ` | 23.52%": scores(uniform)[::-1],
        "| ` | 23.86%": scores(identity)[::-1],
        "A third of a point": ["5,000", f"{math.sqrt(uniform.validation * (100 - uniform.validation) / 5000):.1f}"],
        "On twice as many images": [
            *("20,000", "1,536", *s.three("deepshare", 1536), s.one("deepshare-identity", 1536)),
        ],
        "On the checkerboard identity": [str(solved["identity"]["deepshare"]), "64", xor_solved("deepshare")],
        "**Private and plain.**": [
            *(f"{same['images']:,}", f"{same['median']:.4f}", str(same["same_class"])),
            str(same["same_class_before_noise"]),
        ],
        "Rounding flips": [str(same["flipped"]), f"{same['gates']:,}", str(same["far_off"]), "0.1"],
    }


def camvid() -> Claims:
    """results/camvid-small/README.md."""
    plain, tenth, least = (run(f"{CAMVID}/{name}") for name in ("plain", "gates-10", "gates-3"))
    same = content(f"{CAMVID}/fidelity.json")
    right = [
        percent(content(f"{CAMVID}/{name}/result.json")["test"]["last"]["accuracy"], 1)
        for name in ("plain", "gates-10", "gates-3")
    ]
    return {
        "Recipes `": ["64", "367", epochs(plain), *map(str, least.epochs.values()), "4", "0"],
        "CamVid's own": ["101", "233"],
        "| `, all ReLUs": [f"{plain.gates:,}", f"{plain.test:.2f}", right[0], f"{plain.validation:.2f}"],
        "| ` | 668,940": [f"{tenth.gates:,}", "10", f"{tenth.test:.2f}", right[1], f"{tenth.validation:.2f}"],
        "| `, with its weights": [f"{least.gates:,}", "3", f"{least.test:.2f}", right[2], f"{least.validation:.2f}"],
        "With 3% of its gates": ["3", f"{plain.test - least.test:.1f}", f"{34.08 - 33.22:.1f}", "34.08", "33.22"],
        "On the validation frames": [f"{plain.validation - least.validation:.0f}"],
        "One seed and": [epochs(plain)],
        "Frames are CamVid's": ["4.0"],
        "**Private and plain.**": [
            *(str(same["images"]), percent(same["same_class"] / same["classified"], 1), f"{same['classified']:,}"),
            percent(same["same_class_before_noise"] / same["classified"], 1),
        ],
        "The median error": [
            *(f"{same['median']:.3f}", percent(same["flipped"] / same["gates"], 1), f"{same['gates']:,}"),
        ],
        **flips(),
    }


def flips() -> Claims:
    """results/camvid-small/README.md, the origin of the flips."""
    found = content(f"{CAMVID}/flips.json")
    rows = {row["name"]: row for row in found["rows"]}
    exact, engine, finer, finest = (
        rows[name]
        for name in (
            *("nothing", "everything, as gateshare does", "everything, 2 bits finer", "everything, 6 bits finer"),
        )
    )
    one = [row["same"] for row in found["one_gate"]]
    assert finest["same"] > 0.99 > rows["everything, 4 bits finer"]["same"]
    assert 0.6 < 1 - math.exp(-finer["unsafe"]) < 0.7 and 0.4 < 100 * (finer["same"] - engine["same"]) < 0.6
    return {
        "**Origin of the flips.**": [str(found["images"]), f"{found['gates']:,}", f"{found['classified']:,}"],
        **{f"| {PLAINER.get(name, name)} |": row_of_flips(row) for name, row in rows.items()},
        "Bits moved from": [percent(rows["activations"]["same"], 2)],
        "In exact arithmetic one": [percent(one[0], 2), percent(one[5], 2), percent(one[8], 2)],
        "All channels that share": ["39"],
        "- So it takes": ["99"],
        "Each bit makes": ["2"],
        "Two more bits": ["99"],
        "- The flips cost": [percent(engine["right"], 2), percent(exact["right"], 2)],
    }


PLAINER = {
    "nothing, in float32": "nothing, in single precision",
    "everything, as gateshare does": "everything, as ` does",
    "activations": "activations alone",
    "weights": "weights alone",
    "alpha and beta": "alpha and beta alone",
}


def row_of_flips(row: dict[str, Any]) -> list[str]:
    """Figures of a row: bits, in the name too, flipped gates, classes and unsafe shares."""
    unsafe = [] if row["unsafe"] is None else [f"{row['unsafe']:.{2 if row['unsafe'] < 10 else 0}f}"]
    named = [word for word in row["name"].split() if word.isdigit()]
    bits = [bit for bit in row["bits"].split(", ") if bit != "-"]
    classes = [percent(row["same"], 2), percent(row["right"], 2)]
    return [*named, *bits, f"{sum(row['by_group']):,}", *classes, *unsafe]


def affine() -> Claims:
    """results/affine/README.md."""
    least, tenth = content("affine/affine.json")["runs"]
    shares = [run["linear_share"] for run in (least, tenth)]
    factors = [
        [
            (abs(beta), abs(a + beta))
            for site in run["sites"]
            for a, beta in zip(site["alpha"], site["beta"], strict=True)
        ]
        for run in (least, tenth)
    ]
    closed = [sum(min(pair) <= 0.1 * max(pair) for pair in pairs) / len(pairs) for pairs in factors]
    inverse = [sum(shut > through for shut, through in pairs) / len(pairs) for pairs in factors]
    return {
        "` on the two trained": ["1.25", "10"],
        "With 1,536 gates none": [
            *(f"{least['gates']:,}", str(sum(site["prototypes"] for site in least["sites"]))),
            *(percent(shares[0]["replicates"], 1), f"{tenth['gates']:,}", percent(shares[1]["prototypes"], 1)),
            *(percent(shares[1]["replicates"], 1), "128"),
        ],
        "Channels lie on rings": ["1", "0", *(percent(c, 1) for c in closed), *(percent(i, 0) for i in inverse)],
    }


def dimension() -> Claims:
    """results/dimension/README.md."""
    sites = content("dimension/dimension.json")["sites"]
    last = [site["dimension"]["median"] for site in sites if site["group"] == 4]

    def span(values: list[float]) -> list[str]:
        return [f"{min(values):.2f}", f"{max(values):.2f}"]

    return {
        "` on the trained plain": ["3.1"],
        "- As in the paper's figure": [
            *("2", *span([site["dimension"]["median"] for site in sites])),
            *span([site["shuffled"]["median"] for site in sites]),
        ],
        "They are lowest": span(last),
        "- A gate is about": [
            *span([site["leader"] for site in sites if site["leader"]]),
            *span([site["channels"] for site in sites]),
        ],
        "- Neighbouring positions": [f"{sites[0]['neighbours']:.2f}", f"{sites[-1]['neighbours']:.2f}"],
        "Correlations of single": ["1"],
    }


def xor() -> Claims:
    """results/xor/README.md."""
    methods = content("xor/xor.json")["methods"]
    identity, blunt, shorter, paper = (entry["solved"] for entry in content("xor/settings.json")["found"])

    def line(name: str) -> list[str]:
        reached = methods[name]["accuracy"]
        return [xor_solved(name), str(len(reached)), percent(median(reached), 1), percent(max(reached), 1)]

    others = {solved[name] for solved in (identity, blunt, shorter, paper) for name in solved if name != "deepshare"}
    return {
        "| method, one gate": ["98"],
        "| one ReLU neuron": line("relu"),
        "| SNL style": line("snl"),
        "| DeepShare with the": line("deepshare"),
        "| DeepShare without": line("deepshare-hard"),
        "What it leaves open": ["64"],
        "| the defaults": [xor_solved("deepshare"), "64"],
        "| identity": [str(identity["deepshare"]), "64"],
        "| sharpness": ["1", str(blunt["deepshare"]), "64"],
        "| GELU for half": [str(shorter["deepshare"]), "64"],
        "| the phases of": [str(paper["deepshare"]), "64"],
        "In each of them": [*map(str, others), "64"],
        "64 seeds leave": ["64", f"{100 * math.sqrt(45 / 64 * 19 / 64 / 64):.0f}"],
    }


def xor_solved(name: str) -> str:
    """Networks of a kind that solve the checkerboard with the default settings."""
    return str(content("xor/xor.json")["methods"][name]["solved"])


def epochs(run: Finished) -> str:
    """Epochs of a network itself."""
    return str(sum(run.epochs.values()))


def scores(run: Finished) -> list[str]:
    """Test and validation accuracy."""
    return [f"{run.test:.2f}", f"{run.validation:.2f}"]


PAGES: dict[tuple[str, str | None], Callable[[], Claims]] = {
    ("README.md", None): readme,
    ("docs/comparators.md", "Found"): found,
    ("docs/results.md", "Findings"): results,
    ("docs/measurements.md", None): measured,
    (f"results/{CIFAR}/README.md", None): cifar,
    (f"results/{CAMVID}/README.md", None): camvid,
    ("results/affine/README.md", None): affine,
    ("results/dimension/README.md", None): dimension,
    ("results/xor/README.md", None): xor,
}
