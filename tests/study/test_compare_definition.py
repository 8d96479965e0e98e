"""Studies as files: what they refuse, and that all their runs are alike where they must be."""

import re
from pathlib import Path

import pytest

from deepshare.errors import BudgetError, RecipeError
from deepshare.sharing.convert import count_gates
from deepshare.study.compare.definition import TEACHER, Choice, Job, Study
from deepshare.study.compare.jobs import choose, jobs, kinds, undecided
from deepshare.study.compare.outcome import Outcome
from deepshare.study.compare.page import as_markdown
from deepshare.study.compare.recipes import checksum, load_study, names, recipe_of, taught
from deepshare.study.published import paper
from deepshare.training.build import plain_network
from deepshare.training.method_factory import make_method
from deepshare.training.recipe.files import differences, load_recipe
from tests.study.compare_results import finished, refused

DIGITS = Path(str(__import__("deepshare").__path__[0])) / "study" / "compare" / "studies" / "digits.toml"


@pytest.fixture(scope="module")
def small() -> Study:
    return load_study("small")


@pytest.fixture(scope="module")
def digits() -> Study:
    return load_study("digits")


def test_the_first_pass_is_every_method_at_both_ends(small: Study) -> None:
    first = small.jobs_of(next(part for part in small.passes if part.about == "all methods at 1.25% and 10%"))
    assert {job.budget for job in first} == {None, 1536, 12288}
    methods = {recipe_of(small, job).method.name for job in first}
    assert methods == {
        *("relu", "deepshare", "trimmed", "snl", "autorep", "senet", "deepreduce", "spatial", "hybrenet", "delphi")
    }
    assert {recipe_of(small, job).data.subset for job in first} == {20_000}


@pytest.mark.parametrize("name", names())
def test_all_runs_have_the_same_images_epochs_and_teacher(name: str) -> None:
    study = load_study(name)
    for job in kinds(study):
        recipe = recipe_of(study, Job(job.method, job.data, job.budget, seed=2))
        teacher = recipe_of(study, Job(TEACHER, job.data))
        assert recipe.data == teacher.data
        assert recipe.data.seed == 0
        assert recipe.teacher == teacher.teacher
        assert study.count_start or recipe.distillation.teacher == "plain"
        epochs = sum(phase.epochs for key, phase in recipe.phases.items() if key not in ("plain", "teacher"))
        if recipe.method.name != "relu":
            assert recipe.plain is not None and teacher.plain is not None
            assert recipe.plain.model_copy(update={"model": None}) == teacher.plain
            assert recipe.model_of("plain") == teacher.model
            counted = study.count_start and recipe.method.initial == "plain"
            assert epochs + (teacher.plain.epochs if counted else 0) == study.epochs


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
        made.form(network, "finetune")
        assert count_gates(network.eval(), (3, 32, 32)) == expected


def test_the_trained_teacher_is_put_where_each_method_looks_for_it(digits: Study) -> None:
    folder = Path("runs/teacher")
    assert taught(recipe_of(digits, Job("relu", "few")), folder).model.weights == "runs/teacher"
    shared = taught(recipe_of(digits, Job("deepshare", "few", 96)), folder)
    assert shared.plain is not None and shared.plain.weights == "runs/teacher"
    assert shared.model.weights is None


def test_a_checksum_changes_with_what_decides_and_with_nothing_else(digits: Study) -> None:
    recipe = recipe_of(digits, Job("snl", "few", 96))
    same = recipe.model_copy(update={"about": "something else"})
    assert checksum(same) == checksum(recipe) == checksum(taught(recipe, Path("anywhere")))
    others = [Job("snl", "few", 192), Job("snl", "few", 96, seed=1), Job("deepshare", "few", 96)]
    assert len({checksum(recipe_of(digits, job)) for job in others} | {checksum(recipe)}) == 4


def test_the_recipe_for_own_networks_has_what_won_for_few_epochs(small: Study) -> None:
    own, tuned = load_recipe("own"), recipe_of(small, Job("deepshare-tuned", "subset", 1536))
    assert (own.start, own.method.initial) == (tuned.start, tuned.method.initial) == ("fitted", "plain")
    assert own.distillation == tuned.distillation
    assert own.gelu is not None
    assert tuned.gelu is not None
    assert own.gelu.lr == tuned.gelu.lr
    assert list(own.phases) == ["plain", "gelu", "switch", "finetune"]
    trained = {"plain.epochs": 0, "model.weights": "mine.pt"}
    assert list(load_recipe("own", trained).phases) == ["gelu", "switch", "finetune"]


def test_the_recipe_with_squares_has_what_won_for_few_epochs(small: Study) -> None:
    own, won = load_recipe("own-square"), recipe_of(small, Job("deepshare-square", "subset", 1536))
    assert own.method.square and won.method.square
    assert (own.start, own.method.initial) == (won.start, won.method.initial) == ("fitted", "plain")
    assert list(own.phases) == ["plain", "finetune"]
    assert own.finetune is not None
    assert won.finetune is not None
    assert own.finetune.epochs == sum(
        phase.epochs for name, phase in load_recipe("own").phases.items() if name != "plain"
    )
    assert own.finetune.model_copy(update={"epochs": won.finetune.epochs}) == won.finetune
    assert own.method.fade / own.finetune.epochs == pytest.approx(won.method.fade / won.finetune.epochs, abs=0.05)


def test_a_checksum_has_the_start_that_trains_however_it_is_said() -> None:
    said = {start: load_recipe("digits", {"method.start": start}) for start in ("uniform", "identity", None)}
    trained = load_recipe("digits", {"method.start": None, "model.weights": "trained.pt"})
    assert checksum(said["uniform"]) == checksum(said[None]) != checksum(said["identity"]) == checksum(trained)
    plain = {"base": load_recipe("digits-plain"), "old": load_recipe("digits-plain", {"method.start": "uniform"})}
    assert checksum(plain["base"]) == checksum(plain["old"]) == checksum(taught(plain["base"], Path("anywhere")))


def changed_study(folder: Path, old: str, new: str) -> str:
    text = DIGITS.read_text()
    assert old in text
    (folder / "mine.toml").write_text(text.replace(old, new))
    return str(folder / "mine.toml")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("epochs = 3\n", "epochs = 4\n", ["mine", "has 3 epochs", "every method has 4"]),
        ("lr = 0.05, schedule", "rl = 0.05, schedule", ["method deepshare", "gelu.rl", 'did you mean "gelu.lr"']),
        ('methods = ["relu", ', 'methods = ["rely", ', ["methods.rely", "all methods"]),
        ('data = "few" }', 'data = "many" }', ["data.many", "another seed"]),
        ('like = "deepshare"', 'like = "deepshape"', ["deepshape"]),
        ("[methods.relu]", "[methods.teacher]", ["methods.teacher", "another name"]),
        ('by = "closest"', 'by = "luck"', ["passes.1.choose.by"]),
        ('base = "digits-plain"', "base = 1", ["base"]),
        (
            'base = "digits-plain"',
            'base = "mine.toml"',
            ["mine", '"mine.toml" is no recipe of the package', "[recipe]"],
        ),
        (
            'method = { name = "snl", initial = "plain" }',
            'method = { name = "snl", initial = "plain" }\nmodel = { arguments = { width = 6 } }',
            ["method snl", "not the teacher's", "plain.model"],
        ),
        ('like = "deepshare"', 'like = "trimmed"', ["methods.trimmed", "like itself"]),
        ('like = "deepshare"', 'like = ""', ["is like", "not there"]),
        ("[methods.relu]", '[methods."a/b"]', ["a/b", "name of files"]),
        ("[methods.relu]", "[methods.relu.at]\n96.plain.lr = 1.0\n[methods.relu]", ["relu.at.96", "no budget"]),
        (
            'name = "snl"',
            'name = "snl" }\nplain = { epochs = 9',
            ["methods.snl.recipe: plain.epochs", "same for all"],
        ),
        ('name = "snl"', 'name = "snl" }\nmodel = { weights = "x"', ["methods.snl", "model.weights", "same for all"]),
        ("[methods.snl.recipe]", "[methods.snl.at]\n96.data.subset = 9\n[methods.snl.recipe]", ["at.96: data.subset"]),
        ('name = "snl"', 'name = "snl" }\ndata = { subset = 128', ["methods.snl", "data.subset", "same for all"]),
        ('name = "snl"', 'name = "snl" }\nteacher = { epochs = 9', ["methods.snl", "teacher.epochs", "same for all"]),
        ('allocate = "uniform"', 'allocate = "snl"', ["method deepshare", "budget.allocate", "no other"]),
        ("[methods.snl.recipe]", "[methods.snl.at]\n97.snl.lasso = 1.0\n[methods.snl.recipe]", ["at.97", "96, 192"]),
        ("[methods.snl.recipe]", "[methods.snl.at]\n96.snl.lazzo = 1.0\n[methods.snl.recipe]", ["snl.lazzo"]),
        ("[methods.snl.recipe]", "[methods.snl.on]\nmany.snl.lasso = 1.0\n[methods.snl.recipe]", ["on.many", "few"]),
        (
            "[methods.snl.recipe]",
            "[methods.snl.on]\nfew.data.subset = 9\n[methods.snl.recipe]",
            ["on.few: data.subset"],
        ),
        ("[recipe]", "[recipe", ["mine.toml", "not a TOML file"]),
    ],
)
def test_a_wrong_study_is_refused_in_one_line(tmp_path: Path, old: str, new: str, words: list[str]) -> None:
    with pytest.raises(RecipeError) as error:
        load_study(changed_study(tmp_path, old, new))
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_study_of_ones_own_is_a_file(tmp_path: Path) -> None:
    assert load_study(changed_study(tmp_path, "# A study", "# My study")).name == "mine"


def outcomes(study: Study, scores: dict[str, float], budget: int = 192) -> dict[Job, Outcome]:
    found = {Job(method, "few", budget): score for method, score in scores.items()}
    return {job: finished(study, job, score) for job, score in found.items()}


def test_the_teacher_comes_first_and_choices_come_when_they_can_be_made(digits: Study) -> None:
    every = jobs(digits, {})
    assert every[0] == Job(TEACHER, "few")
    assert [job.name for job in every[1:4]] == ["few-relu-seed0", "few-deepshare-96-seed0", "few-snl-96-seed0"]
    assert [part.about for part in undecided(digits, {})] == ["another seed for the two closest"]
    decided = outcomes(digits, {"deepshare": 60.0, "snl": 50.0})
    assert undecided(digits, decided) == []
    assert jobs(digits, decided)[len(every) :] == [Job("deepshare", "few", 192, 1), Job("snl", "few", 192, 1)]


def test_a_method_without_a_result_is_not_chosen(digits: Study) -> None:
    job = Job("snl", "few", 192)
    known = {**outcomes(digits, {"deepshare": 60.0}), job: refused(digits, job, "it cannot")}
    assert undecided(digits, known) == []
    assert len(jobs(digits, known)) == len(jobs(digits, {}))


def test_leaders_and_neighbours() -> None:
    ranked = {"a": 60.0, "b": 59.0, "c": 50.0, "d": 49.5}
    assert choose(Choice(by="leaders", count=2, data="few"), ranked) == {"a", "b"}
    assert choose(Choice(by="closest", count=1, data="few"), ranked) == {"c", "d"}
    assert choose(Choice(by="closest", count=2, data="few"), ranked) == {"a", "b", "c", "d"}


def test_the_study_in_the_documentation_can_be_run(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/comparators.md").read_text(encoding="utf-8")
    found = re.search(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found
    (tmp_path / "own.toml").write_text(found[1])
    study = load_study(str(tmp_path / "own.toml"))
    assert [job.name for job in jobs(study, {})] == [
        "few-teacher-seed0",
        *(f"few-{method}-{budget}-seed0" for budget in (192, 384) for method in ("deepshare", "no-affine", "snl")),
    ]
    assert f"`deepshare compare --study {tmp_path}/own.toml --show`" in as_markdown(study, {}, [])
    recipes = [recipe_of(study, job) for job in kinds(study)]
    assert [recipe.snl.lasso for recipe in recipes if recipe.method.name == "snl"] == [1e-4, 1e-5]
