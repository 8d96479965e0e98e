"""The packaged study small, and the recipes that follow from its results."""

import pytest

from deepshare.errors import BudgetError
from deepshare.methods.deepshare import DeepShareOptions
from deepshare.sharing.convert import count_gates
from deepshare.study.compare.study_file import Job, Study, recipe_of
from deepshare.study.published import paper
from deepshare.training.build import make_method, plain_network
from deepshare.training.recipe.files import differences, load_recipe


def test_the_first_pass_is_every_method_at_both_ends(small: Study) -> None:
    first = small.jobs_of(next(part for part in small.passes if part.about == "all methods at 1.25% and 10%"))
    assert {job.budget for job in first} == {None, 1536, 12288}
    methods = {recipe_of(small, job).method.name for job in first}
    assert methods == {
        *("relu", "deepshare", "trimmed", "snl", "autorep", "senet", "deepreduce", "spatial", "hybrenet", "delphi")
    }
    assert {recipe_of(small, job).data.subset for job in first} == {20_000}


def test_every_ablation_of_the_paper_is_there(small: Study) -> None:
    ours = {entry.ablation for entry in small.methods.values() if entry.ablation}
    assert ours == {row.method for row in paper.load().ablations.rows}
    published = paper.load().find("resnet18", "cifar100")
    assert published is not None
    known = {row.method for row in published.rows} | {"DeepReDuce"}  # which is in another table
    assert {entry.paper for entry in small.methods.values() if entry.paper} <= known


def test_what_goes_beyond_the_paper_changes_one_thing_each(small: Study) -> None:
    part = next(part for part in small.passes if part.about.startswith("DeepShare beyond the paper"))
    changed = {}
    for job in small.jobs_of(part):
        base = recipe_of(small, Job("deepshare", job.data, job.budget))
        keys = differences(base, recipe_of(small, job))
        changed[job.method] = {key for key in keys if not key.startswith(("pilot", "gelu"))}
    assert changed == {
        "learned-pi": {"method.mapping"},
        "data-leader": {"budget.leader"},
        "annealed": {"method.switch_by"},
        "sensitivity": {"budget.allocate"},
        "deepshare-started": {"method.start", "method.initial"},
        "deepshare-taught": {"distillation.after_gelu"},
        "deepshare-fitted": {"method.start", "method.initial"},
        "deepshare-identity": {"method.start"},
    }


def test_a_rate_may_be_another_where_an_epoch_has_more_steps(small: Study) -> None:
    few, every = (recipe_of(small, Job("autorep", data, 1536)) for data in ("subset", "full"))
    changed = {key: new for key, (_, new) in differences(few, every).items() if not key.startswith("data.")}
    assert changed == {"search.lr": 1e-3, "search.end_lr": 1e-4, "finetune.lr": 1e-4}


@pytest.mark.parametrize(
    ("method", "gates"),
    [("deepreduce", (1536, 6144, 12288)), ("hybrenet", (1280, 5120, 11520)), ("delphi", (None, 6144, 12288))],
)
def test_methods_of_whole_layers_come_as_near_to_the_budgets_as_they_can(
    small: Study, method: str, gates: tuple[int | None, ...]
) -> None:
    for budget, expected in zip((1536, 6144, 12288), gates, strict=True):
        recipe = recipe_of(small, Job(method, "subset", budget))
        base = plain_network(recipe, "shared")
        made = make_method(recipe, base, (3, 32, 32))
        if expected is None:
            with pytest.raises(BudgetError, match="2,048"):
                made.convert(base)
            continue
        network = made.convert(base)
        made.build_phase_modules(network, "finetune")
        assert count_gates(network.eval(), (3, 32, 32)) == expected


def test_the_recipe_for_own_networks_has_what_won_for_few_epochs(small: Study) -> None:
    own, tuned = load_recipe("own"), recipe_of(small, Job("deepshare-tuned", "subset", 1536))
    for recipe in (own, tuned):
        assert (recipe.section(DeepShareOptions).start, recipe.method.initial) == ("fitted", "plain")
    assert own.distillation == tuned.distillation
    assert own.gelu is not None
    assert tuned.gelu is not None
    assert own.gelu.lr == tuned.gelu.lr
    assert list(own.phases) == ["plain", "gelu", "switch", "finetune"]
    trained = {"plain.epochs": 0, "model.weights": "mine.pt"}
    assert list(load_recipe("own", trained).phases) == ["gelu", "switch", "finetune"]


def test_the_recipe_with_squares_has_what_won_for_few_epochs(small: Study) -> None:
    own, won = load_recipe("own-square"), recipe_of(small, Job("deepshare-square", "subset", 1536))
    ours, theirs = own.section(DeepShareOptions), won.section(DeepShareOptions)
    assert ours.square and theirs.square
    assert ours.start == theirs.start == "fitted"
    assert own.method.initial == won.method.initial == "plain"
    assert list(own.phases) == ["plain", "finetune"]
    assert own.finetune is not None
    assert won.finetune is not None
    assert own.finetune.epochs == sum(
        phase.epochs for name, phase in load_recipe("own").phases.items() if name != "plain"
    )
    assert own.finetune.model_copy(update={"epochs": won.finetune.epochs}) == won.finetune
    assert ours.fade / own.finetune.epochs == pytest.approx(theirs.fade / won.finetune.epochs, abs=0.05)
