"""Study files: refusals, and what is common to all runs."""

import re
from pathlib import Path

import pytest

from deepshare.errors import RecipeError
from deepshare.methods.snl import SNLSettings
from deepshare.study.compare.page import as_markdown
from deepshare.study.compare.runner import jobs, kinds
from deepshare.study.compare.study_file import (
    TEACHER,
    Job,
    Study,
    checksum,
    load_study,
    names,
    recipe_of,
    taught,
)
from deepshare.training.recipe.files import load_recipe
from tests.study.compare.digits import DIGITS


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
            assert recipe.model_of("plain").model_copy(update={"maxpool": None}) == teacher.model
            counted = study.count_start and recipe.method.initial == "plain"
            assert epochs + (teacher.plain.epochs if counted else 0) == study.epochs


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
        ('like = "deepshare"', 'like = "trimmed"', ["methods.trimmed", "leads back to itself"]),
        ('like = "deepshare"', 'like = ""', ['like = ""', "no such method"]),
        ("[methods.relu]", '[methods."a/b"]', ["a/b", "part of file names"]),
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


def test_the_study_in_the_documentation_can_be_run(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/comparators.md").read_text(encoding="utf-8")
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
    assert [recipe.section(SNLSettings).lasso for recipe in recipes if recipe.method.name == "snl"] == [1e-4, 1e-5]
