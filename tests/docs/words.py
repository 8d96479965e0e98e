"""What docs/comparators.md says under Found without figures, and whether records, recipes and code bear it out."""

import torch

from deepshare import plan, zoo
from deepshare.methods.autorep import AutoRePSettings, authors_start, fit_relu
from deepshare.methods.deepshare import DeepShare, DeepShareOptions
from deepshare.private.cost import predict
from deepshare.sharing.sites import find_sites
from deepshare.study.compare.study_file import Job, Study, load_study, recipe_of
from deepshare.training.build import make_plan, plain_network
from deepshare.training.recipe.files import Recipe, differences, load_recipe
from tests.docs.records import RESULTS, fair, small

SIZE = (3, 16, 16)


def found_in_words() -> dict[str, bool]:
    """Starts of sentences, and whether they hold."""
    return {**within_equal_epochs(), **within_few_epochs()}


def within_equal_epochs() -> dict[str, bool]:
    """Of the study fair."""
    study = fair().study
    page = (RESULTS / "compare" / "fair" / "README.md").read_text(encoding="utf-8")
    names = ("deepshare", "autorep", "deepshare-fade", "deepshare-square")
    ours, *others = (recipe_of(study, Job(name, "subset", 2288)) for name in names)
    return {
        "Its page has all figures": "### Where accuracy is lost" in page and "![Accuracy over epochs]" in page,
        "Two terms are not equal": {recipe.distillation.teacher for recipe in others} != {ours.distillation.teacher},
        "And each method has its own": (optimisers(ours), *map(optimisers, others)) == ({"sgd"}, *[{"adam"}] * 3),
    }


def within_few_epochs() -> dict[str, bool]:
    """Of the study small."""
    s, study = small(), small().study
    squares, shared = (recipe_of(study, Job(name, "subset", 1536)) for name in ("deepshare-square", "deepshare"))
    few, every = (recipe_of(study, Job("autorep", data, 1536)).search for data in ("subset", "full"))
    pairs = [[s.row(name, gates) for name in ("deepshare-square", "autorep")] for gates in (1536, 6144, 12288)]
    parts = [s.row(name, 6144).test.mean for name in ("deepshare", "no-affine", "no-layer-sharing", "no-budget")]
    seeds = [run.test for run in s.row("deepshare", 1536).runs]
    running, fade = (
        recipe_of(fair().study, Job(f"deepshare-{name}", "subset", 2288)) for name in ("square-running", "fade")
    )
    ablations = load_study("fair-ablations")
    zero, one = torch.tensor(0.0), torch.tensor(1.0)
    tenth = AutoRePSettings().scale
    theirs = tenth * float(authors_start(zero, one)[0] / fit_relu(zero, one)[0])
    paper = load_recipe("cifar100-resnet18-6k").result_phases.values()
    return {
        "Its terms are not equal": not study.count_start,
        "So ` says what happens": not study.count_start,
        "The paper has hundreds": sum(phase.epochs for phase in paper) > 200,
        "Both start from the teacher": (
            all(ours.before > 0 for ours, _ in pairs)
            and all((ours.before, ours.epochs) == (rival.before, rival.epochs) for ours, rival in pairs)
            and few is not None
            and every is not None
            and few.lr == 2 * every.lr
        ),
        "This variant also fades": (
            squares.section(DeepShareOptions).fade > 0
            and squares.gelu is None
            and optimisers(squares) != optimisers(shared)
        ),
        "` has the control": set(differences(running, fade)) == {"method.square"},
        "On [gateshare] squares": rounds(square=True) == rounds(square=False),
        "This cannot tell them apart": max(parts) - min(parts) < max(seeds) - min(seeds),
        "The study ` has a regime": prototypes(ablations, "deepshare") != prototypes(ablations, "no-budget"),
        "- **AutoReP here is not": (tenth, round(theirs, 6)) == (0.1, 0.01),
        "` takes their start": {"autorep", "autorep-authors"} <= set(fair().study.methods),
    }


def optimisers(recipe: Recipe) -> set[str]:
    """Optimisers of all phases of the result."""
    return {phase.optimiser for phase in recipe.result_phases.values()}


def prototypes(study: Study, method: str) -> list[int]:
    """Prototypes of each group of a method at 1,536 gates."""
    recipe = recipe_of(study, Job(method, "subset", 1536))
    network = plain_network(recipe, "shared")
    assert recipe.budget is not None
    weights = recipe.budget.allocation.read(find_sites(network, SIZE))
    return [group.prototypes for group in make_plan(recipe, network, SIZE, weights).groups]


def rounds(*, square: bool) -> int:
    """Rounds of one image on gateshare."""
    model = zoo.resnet18(num_classes=10, width=4)
    network = DeepShare(plan(model, SIZE, "20%"), square=square).convert(model).eval()
    return predict(network, SIZE, "gateshare").online.rounds
