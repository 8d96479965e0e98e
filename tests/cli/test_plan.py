import json
import tomllib
from pathlib import Path

import pytest

from deepshare import Plan
from tests.cli.command import Cli

STAGES = [f"layer{stage}.{block}.act{act}" for stage in (1, 2, 3, 4) for block in (0, 1) for act in (1, 2)]


def test_the_table_ends_with_the_gates(cli: Cli) -> None:
    said = cli("plan", "resnet18", "--budget", 6000)
    assert (said.code, said.err) == (0, "")
    *_, total, engines = said.out.splitlines()
    assert total.startswith("6,000 gates instead of 491,520 (1.22%)")
    assert engines == "crypten, gateshare, gateshare-2pc, spu-cheetah, spu-semi2k: runs"


def test_json_on_screen_and_the_file_are_the_same_plan(cli: Cli, tmp_path: Path) -> None:
    said = cli("plan", "resnet18", "--budget", "6000", "--json", "--out", tmp_path / "plan.json")
    assert said.out == (tmp_path / "plan.json").read_text()
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.gates == 6000
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def planned(cli: Cli, *options: object) -> Plan:
    return Plan.from_json(cli("plan", "resnet18", "--json", *options).out)


def test_a_share_of_all_relus_is_a_budget(cli: Cli) -> None:
    assert planned(cli, "--budget", "1.2%").budget == 5898


def test_the_options_cut_the_groups(cli: Cli) -> None:
    def sizes(*options: object) -> list[int]:
        return [len(group.sites) for group in planned(cli, "--budget", 20_000, *options).groups]

    assert sizes() == [4] * 4
    assert sizes("--no-layer-sharing") == [1] * 16
    assert sizes("--max-group", 3) == [3, 1] * 4
    assert sizes("--per-block") == [2] * 8


def test_senet_densities_put_the_gates_into_the_deep_layers(cli: Cli) -> None:
    plan = planned(cli, "--budget", 6000, "--allocate", "senet")
    assert [group.prototypes for group in plan.groups] == [1, 4, 28, 135]
    assert plan.gates == 6000


def test_snl_needs_a_recipe_and_a_folder(cli: Cli) -> None:
    said = cli("plan", "resnet18", "--budget", 6000, "--allocate", "snl")
    assert (said.out, said.code) == ("", 2)
    assert "--recipe" in said.err


def test_snl_trains_the_network_of_the_recipe_within_the_budget(cli: Cli, tmp_path: Path) -> None:
    recipe = tmp_path / "short.toml"
    short = ["model.arguments.width = 4", "data.subset = 64", "plain.epochs = 1"]
    short += ["snl.max_epochs = 60", "snl.lasso = 0.1", "snl.lr = 0.1"]
    recipe.write_text("\n".join(['base = "digits"', *short]))
    run = ["--allocate", "snl", "-r", recipe, "--run", tmp_path / "run", "--input-size", "1x8x8"]
    said = cli("plan", "resnet18", "--budget", "20%", *run, "--json")
    assert said.code == 0, said.err
    plan = Plan.from_json(said.out)
    # ResNet-10 of width 4 at 8x8, as the recipe has it: 2 ReLUs in each of 4 blocks, and each half as many as before.
    assert plan.neurons == 2 * 4 * 64 + 2 * 8 * 16 + 2 * 16 * 4 + 2 * 32 * 1
    counts = json.loads((tmp_path / "run" / "snl" / "counts.json").read_text())
    assert sum(counts.values()) <= plan.budget
    assert 'gates = "20%"' in (tmp_path / "run" / "recipe.toml").read_text()
    again = cli("plan", "resnet18", "--budget", "20%", *run, "--resume", "--json")
    assert again.out == said.out


def short(folder: Path, *keys: str) -> Path:
    file = folder / "short.toml"
    few = ["model.arguments.width = 4", "data.subset = 64", "plain.epochs = 1", "snl.max_epochs = 1"]
    file.write_text("\n".join(['base = "digits"', *few, *keys]))
    return file


def test_snl_plans_for_the_images_that_it_trains_on(cli: Cli, tmp_path: Path) -> None:
    run = ["--allocate", "snl", "-r", short(tmp_path), "--run", tmp_path / "run"]
    other = cli("plan", "resnet18", "--budget", "20%", *run, "--input-size", "3x32x32")
    assert (other.out, other.code, other.err.count("\n")) == ("", 2, 1)
    assert "--input-size 3x32x32" in other.err and "1x8x8" in other.err
    assert not (tmp_path / "run").exists()
    assert Plan.from_json(cli("plan", "resnet18", "--budget", "20%", *run, "--json").out).input_size == (1, 8, 8)


@pytest.mark.parametrize("flag", ["--no-layer-sharing", "--max-group=1", "--per-block"])
def test_a_budget_below_what_the_flags_need_is_refused_before_snl(cli: Cli, tmp_path: Path, flag: str) -> None:
    wide = short(tmp_path, "model.arguments.depth = 18")
    run = ["--allocate", "snl", "-r", wide, "--run", tmp_path / "run"]
    said = cli("plan", "resnet18", "--budget", 120, *run, flag)
    assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
    assert "120" in said.err and "at least" in said.err
    assert not (tmp_path / "run").exists()


def test_the_flags_are_in_the_recipe_of_the_training(cli: Cli, tmp_path: Path) -> None:
    run = ["--allocate", "snl", "-r", short(tmp_path), "--run", tmp_path / "run"]
    said = cli("plan", "resnet18", "--budget", "60%", *run, "--no-layer-sharing", "--patch", 2, "--first-site-only")
    assert said.code == 0, said.err
    budget = tomllib.loads((tmp_path / "run" / "recipe.toml").read_text())["budget"]
    assert (budget["layer_sharing"], budget["patch"], budget["first_site_only"]) == (False, 2, True)


def test_a_recipe_gives_network_and_size_to_every_allocation(cli: Cli, tmp_path: Path) -> None:
    counts = {f"layer{stage}.0.act{act}": 1.0 for stage in (1, 2, 3, 4) for act in (1, 2)}
    (tmp_path / "counts.json").write_text(json.dumps(counts))
    for allocate in ("uniform", tmp_path / "counts.json"):
        options = ["--allocate", allocate, "-r", short(tmp_path, "budget.max_group = 1")]
        plan = planned(cli, "--budget", "20%", *options)
        assert (plan.input_size, plan.sites[0].channels) == ((1, 8, 8), 4)
        assert [len(group.sites) for group in plan.groups] == [1] * 8
        assert planned(cli, "--budget", "20%", *options, "--input-size", "1x16x16").input_size == (1, 16, 16)


def test_the_first_site_alone_may_decide(cli: Cli, tmp_path: Path) -> None:
    weights = {name: 8.0 if name == "layer1.0.act2" else 0.5 for name in STAGES}
    (tmp_path / "weights.json").write_text(json.dumps(weights))
    options = ["--budget", 60_000, "--allocate", tmp_path / "weights.json"]
    by_sum, by_first = planned(cli, *options), planned(cli, *options, "--first-site-only")
    by_site = planned(cli, *options, "--first-site-only", "--no-layer-sharing")
    assert by_sum.groups[0].gates > 2 * by_first.groups[0].gates
    assert by_site == planned(cli, *options, "--no-layer-sharing")  # each site is the first of its own group
    recipe = tmp_path / "first.toml"
    recipe.write_text('base = "cifar100-resnet18-6k"\nbudget.first_site_only = true')
    assert planned(cli, *options, "-r", recipe).groups == by_first.groups


def test_weights_divide_the_budget(cli: Cli, tmp_path: Path) -> None:
    weights = {name: 8.0 if name.startswith("layer1") else 0.5 for name in STAGES}
    (tmp_path / "weights.json").write_text(json.dumps(weights))
    plan = planned(cli, "--budget", 60_000, "--allocate", tmp_path / "weights.json")
    assert plan.groups[0].gates > 0.8 * plan.gates > 0.8 * 59_980


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ("0", ["0"]),
        ("-5", ["-5"]),
        ("many", ["many"]),
        ("nan", ["nan"]),
        ("6000.5", ["6000.5"]),
        ("", ["''"]),
        ("1000", ["1,000", "1,360"]),
        ("1359", ["1,360"]),
        ("491521", ["491,521", "491,520"]),
        ("0%", ["0%"]),
        ("101%", ["491,520"]),
    ],
)
def test_an_impossible_budget_is_one_line_and_nothing_is_written(
    cli: Cli, tmp_path: Path, budget: str, words: list[str]
) -> None:
    said = cli("plan", "resnet18", f"--budget={budget}", "--out", tmp_path / "plan.json")
    assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
    assert said.err.startswith("deepshare: ")
    assert all(word in said.err for word in words), said.err
    assert not list(tmp_path.iterdir())


def test_the_smallest_and_the_largest_budget_work(cli: Cli) -> None:
    assert planned(cli, "--budget", 1360).gates == 1360
    assert planned(cli, "--budget", 491_520, "--no-layer-sharing").gates == 491_520


def test_a_network_without_relus_is_refused(cli: Cli) -> None:
    said = cli("plan", "torchvision:mobilenet_v2", "--budget", "1%")
    assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
    assert "ReLU" in said.err


@pytest.mark.parametrize("where", ["no/such/plan.json", "file/plan.json", "folder"])
def test_a_file_that_cannot_be_written_is_found_out_before_any_work(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr("deepshare.zoo.build", pytest.fail)
    said = cli("plan", "resnet18", "--budget", 6000, "--out", tmp_path / where)
    assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
    assert str(tmp_path / where) in said.err
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot read"),
        ("{", "not JSON"),
        ("[1, 2]", "one number for each site"),
        ('{"layer1.0.act1": "much"}', "one number for each site"),
        ('{"layer1.0.act1": true}', "one number for each site"),
        ('{"layer1.0.act1": 1}', "no weight for layer1.0.act2"),
        (json.dumps(dict.fromkeys([*STAGES, "layer9"], 1)), "layer9"),
        (json.dumps(dict.fromkeys(STAGES, -1)), "weight"),
        (json.dumps(dict.fromkeys(STAGES, float("nan"))), "weight"),
        (json.dumps(dict.fromkeys(STAGES, float("inf"))), "weight"),
    ],
)
def test_weights_that_do_not_fit_are_refused(cli: Cli, tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "weights.json"
    if content is not None:
        file.write_text(content)
    said = cli("plan", "resnet18", "--budget", 6000, "--allocate", file, "--out", tmp_path / "plan.json")
    assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
    assert words in said.err
    assert not (tmp_path / "plan.json").exists()


def test_a_group_of_at_most_no_site_is_refused(cli: Cli) -> None:
    said = cli("plan", "resnet18", "--budget", 6000, "--max-group", 0)
    assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)


def test_patches_cost_fewer_gates(cli: Cli) -> None:
    assert "32x32 by 4x4" in cli("plan", "resnet18", "--budget", "6000", "--patch", "4").out


def test_a_plan_says_what_else_compares(cli: Cli) -> None:
    said = cli("plan", "torchvision:resnet18", "--input-size", "3x32x32", "--budget", "10%")
    assert "also compares: max_pool2d (24,576)" in said.out.splitlines()
