"""What the pages say of studies and trained networks: each sentence with figures, and where these come from.

A claim is the start of a sentence and its figures in their order, recomputed from the committed records. Numbers that
only name a setting are written as they are.
"""

from collections.abc import Callable

from deepshare.training.catalog import Finished
from tests.docs.records import content, packaged, percent, run, small, told

Claims = dict[str, list[str]]

CIFAR, CAMVID = "cifar100-small", "camvid-small"
TUNED, SQUARES = "deepshare-tuned", "deepshare-square"


def found() -> Claims:
    """docs/comparators.md, Found."""
    s = small()
    least, middle, most = (s.share(budget) for budget in (1536, 6144, 12288))
    seeds = [float(seed) for seed in s.seeds("deepshare", 1536)]
    return {
        "So far, from": ["20,000", str(s.study.epochs)],
        "AutoReP, SNL, SENet, spatial": s.epochs("teacher", None),
        "And 1.25% of the gates": [least, f"{16**2 + 32**2 + 8**2 + 4**2:,}", "1,536"],
        "[`] is the study": ["60", "2,288"],
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
        "- **DELPHI** has": [s.seeds("delphi", 6144)[0], middle, *set(s.seeds("delphi", 6144)[1:])],
        "Their code, put into": ["45.94", s.seeds("autorep", 1536)[-1], "1,536", "0"],  # says that it has no record
    }


def results() -> Claims:
    """README.md, Results."""
    s = small()
    camvid = [run(f"{CAMVID}/{name}") for name in ("plain", "gates-10", "gates-3")]
    plain, tenth, least = (run(f"{CIFAR}/{name}") for name in ("plain", "gates-10", "gates-1.25"))
    shared, digits = packaged("digits"), packaged("digits-plain")
    medians = [site["dimension"]["median"] for site in content("dimension/dimension.json")["sites"]]
    linear = [entry["linear_share"]["replicates"] for entry in content("affine/affine.json")["runs"]]
    return {
        "**Methods side by side.**": ["16", "20,000"],
        "- With 5% of the gates": [
            *(s.share(6144), *s.three(SQUARES, 6144), *s.three("autorep", 6144), s.share(1536)),
        ],
        "- Epochs are not equal": [str(s.study.epochs), *s.epochs("teacher", None)],
        "The study [`] gives": ["60"],
        "| [Private time]": told("6,000", "0.083", "1.1", "0.290", "1.18", "14", "51"),
        "| [Private bytes]": told("5.2", "21", "44", "128"),
        "| [Private and plain]": told("996", "1,000"),
        "| [Any model in]": told("115", "117"),
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
        "| [Gates of a trained": [
            *(f"{min(medians):.2f}", f"{max(medians):.2f}", percent(min(linear), 0), percent(max(linear), 0)),
        ],
        "| Digits": [
            *(f"{shared.test:.2f}", "300", f"{shared.gates:,}", epochs(shared)),
            *(f"{digits.test:.2f}", f"{digits.gates:,}", epochs(digits)),
        ],
    }


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


def xor_solved(name: str) -> str:
    """Networks of a kind that solve the checkerboard with the default settings."""
    return str(content("xor/xor.json")["methods"][name]["solved"])


def epochs(run: Finished) -> str:
    """Epochs of a network itself."""
    return str(sum(run.epochs.values()))


PAGES: dict[tuple[str, str | None], Callable[[], Claims]] = {
    ("docs/comparators.md", "Found"): found,
    ("README.md", "Results"): results,
    ("results/affine/README.md", None): affine,
    ("results/dimension/README.md", None): dimension,
}
