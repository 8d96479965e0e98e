"""`deepshare compare`."""

import json
import sys
from importlib import resources
from pathlib import Path

import pytest

from tests.cli.command import Cli


def test_run_list_and_show(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli("compare", "--study", "digits", "--only", "deepshare", "--limit", "2")
    assert ran.code == 0, ran.err
    lines = ran.err.splitlines()
    assert lines[0] == "few-teacher-seed0 (1 of 8, about 1.0 min)"
    assert [line.split()[0] for line in lines[1:3]] == ["plain", "plain"]
    assert lines[-1] == "stopped before the next run, as requested; run the same command to continue"
    assert "DeepShare" in ran.out
    assert ran.out.endswith("written to results/compare/digits/README.md\n")
    results = sorted(file.name for file in Path("results/compare/digits").iterdir())
    assert results == [
        *("README.md", "curves-few.png", "curves-few.svg"),
        *("few-deepshare-96-seed0.json", "few-teacher-seed0", "few-teacher-seed0.json"),
        *("pareto-few.png", "pareto-few.svg"),
    ]

    listed = cli("compare", "--study", "digits", "--list").out.splitlines()
    assert listed[2].split()[:2] == ["few-teacher-seed0", "finished"]
    assert "few-snl-96-seed0         open" in [line.rstrip() for line in listed]
    assert listed[-1].startswith("2 of 8 runs are finished. Chosen when these are finished: another seed")
    states = {
        run["run"]: run["state"] for run in json.loads(cli("compare", "--study", "digits", "--list", "--json").out)
    }
    assert states["few-deepshare-96-seed0"] == "finished"
    some = json.loads(cli("compare", "--study", "digits", "--list", "--only", "snl", "trimmed", "--json").out)
    assert [run["run"] for run in some] == [name for name in states if "snl" in name or "trimmed" in name]

    shown = json.loads(cli("compare", "--study", "digits", "--show", "--json").out)
    assert shown["study"] == "digits"
    assert [row["method"] for row in shown["rows"]] == ["teacher", "deepshare"]
    assert shown["rows"][1]["gates"] == 96
    assert Path("runs/compare/digits/few-deepshare-96-seed0/model.safetensors").exists()


def test_without_results_nothing_is_written(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("compare", "--study", "digits", "--show").out.startswith("digits: 0 of ")
    assert list(tmp_path.iterdir()) == []


def test_dry_run(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = cli("compare", "--study", "digits", "--dry-run").out.splitlines()
    assert [line.partition(":")[0] for line in said] == [
        *("few-relu-seed0", "few-deepshare-96-seed0", "few-snl-96-seed0", "few-trimmed-96-seed0"),
        *("few-deepshare-192-seed0", "few-snl-192-seed0", "few-trimmed-192-seed0"),
    ]
    assert [line for line in said if not line.endswith(": every phase runs")] == [said[3]]
    assert "minimum of 170 gates" in said[3]
    found = json.loads(cli("compare", "--study", "digits", "--dry-run", "--only", "snl", "--json").out)
    assert found == [{"run": f"few-snl-{budget}-seed0", "refused": None} for budget in (96, 192)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--study", "smal"], ['no study is called "smal"', 'did you mean "small"']),
        (["--study", "nowhere.toml"], ["nowhere.toml", "no such study file"]),
        (["--study", "file"], ["file: a study is a TOML file", "ends in .toml"]),
        (["--study", "empty.toml"], ["the study empty.toml: about: is missing"]),
        (["--study", "pass.toml"], ["the study pass.toml: passes: ", "methods.snail"]),
        (["--study", "digits", "--only", "snail"], ["--only snail", 'did you mean "snl"', "deepshare, trimmed, snl"]),
        (["--study", "digits", "--list", "--show"], ["only one of"]),
        (["--study", "digits", "--teacher", "nowhere"], ["no folder nowhere"]),
        (["--study", "digits", "--minutes", "soon"], ["--minutes"]),
        (["--study", "small", "--data-dir", "/nonexistent"], ["cifar-100-python"]),
        (["--study", "small", "--data-dir", "/nonexistent", "--dry-run"], ["cifar-100-python"]),
        (["--study", "engine.toml", "--list"], ["no engine is named foo"]),
        (["--study", "digits", "--out", "file/out"], ["cannot create the folder file/out"]),
        (["--study", "digits", "--show", "--out", "damaged"], ["damaged/few-snl-96-seed0.json is damaged"]),
        (["--study", "digits", "--launch", "ray"], ["--launch"]),
        (["--study", "digits", "--launch", "slurm"], ["sbatch or srun is not installed", "a machine of the cluster"]),
        (["--study", "digits", "--launch", "local", "--partition", "gpu"], ["--partition is for --launch slurm"]),
        (["--study", "digits", "--hours", "3"], ["--hours is for --launch slurm"]),
        (["--study", "digits", "--at-once", "2"], ["--at-once is for --launch local and --launch slurm"]),
        (["--study", "digits", "--launch", "local", "--at-once", "0"], ["--at-once: give more than 0"]),
        (["--study", "digits", "--limit", "-1"], ["--limit -1: give more than 0"]),
        (["--study", "digits", "--minutes", "0"], ["--minutes 0: give more than 0"]),
        (["--study", "digits", "--launch", "slurm", "--gpus", "2"], ["--gpus 2", "one GPU"]),
        (["--study", "digits", "--launch", "slurm", "--dry-run"], ["--launch runs a study"]),
        (["--study", "digits", "--launch", "local", "--minutes", "5"], ["--minutes", "--limit"]),
        (["--study", "paper", "--launch", "local", "--data-dir", "/nonexistent"], ["cifar-100-python"]),
        ([], ["--study"]),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    cli: Cli, arguments: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    digits = resources.files("deepshare.study.compare") / "studies" / "digits.toml"
    Path("engine.toml").write_text(digits.read_text().replace('engine = "crypten"', 'engine = "foo"'))
    Path("empty.toml").touch()
    Path("pass.toml").write_text(digits.read_text().replace('methods = ["deepshare",', 'methods = ["snail",'))
    Path("damaged").mkdir()
    Path("damaged/few-snl-96-seed0.json").write_text("{")
    said = cli("compare", *arguments)
    assert (said.out, said.code) == ("", 2)
    assert said.err.splitlines()[-1].startswith("deepshare: ")
    assert all(word in said.err for word in words), said.err


@pytest.mark.parametrize("launch", ["local", "slurm"])
def test_without_submitit_one_line_says_what_to_install(
    cli: Cli, launch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "submitit", None)  # as if it were not installed
    said = cli("compare", "--study", "digits", "--launch", launch)
    cure = f"deepshare: --launch {launch} needs submitit: pip install 'deepshare[cluster]'\n"
    assert (said.out, said.err, said.code) == ("", cure, 2)
    assert list(tmp_path.iterdir()) == []
