"""`deepshare train` and `deepshare eval`."""

import io
import json
from pathlib import Path

import pytest
import torch

from deepshare.cli.train import read_keys
from deepshare.errors import RecipeError
from deepshare.training.build import load
from deepshare.training.recipe.files import load_recipe
from deepshare.training.reporter import Bars, EpochLine, Lines, duration, make_reporter
from tests.cli.command import FLAGS, Cli
from tests.data.layouts import write_picture

LINE = EpochLine("switch", 3, 7, 1.23456, 0.5, 2.0, 0.4567, "accuracy", 0.01, 12.3, {"hard_share": 3 / 7})


def test_train_resume_and_eval(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "run"
    trained = cli("train", "-r", "digits", "--out", out, *FLAGS, "--json")
    assert trained.code == 0, trained.err
    result = json.loads(trained.out)
    assert result["out"] == str(out)
    said = [line.split()[0] for line in trained.err.splitlines()]
    assert said == ["teacher", "gelu", "switch", "finetune"]
    assert "hard gates 100%" in trained.err.splitlines()[-1]

    evaluated = json.loads(cli("eval", out, "--json").out)
    assert evaluated["accuracy"] == result["test"]["last"]["accuracy"]
    assert evaluated["gates"] == result["gates"]
    assert f"on 300 images, loss {evaluated['loss']:.4f}" in cli("eval", out).out

    again = cli("train", "-r", "digits", "--out", out, *FLAGS)
    assert again.code == 2
    assert again.err == f"deepshare: {out} holds a finished run: give another folder\n"
    alone = cli("train", "--out", out, "--resume")
    resumed = cli("train", "-r", "digits", "--out", out, *FLAGS, "--resume")
    assert alone == resumed
    assert resumed.out == f"{out}: {result['gates']:,} gates, test accuracy {evaluated['accuracy']:.2%}\n"
    whole = (out / "result.json").read_text()
    (out / "result.json").write_text(whole[:-20])
    damaged = cli("train", "-r", "digits", "--out", out, *FLAGS, "--resume")
    assert (damaged.out, damaged.code) == ("", 2)
    assert "result.json is missing or damaged" in damaged.err
    (out / "result.json").write_text(whole)
    changed = cli("train", "-r", "digits", "--out", out, *FLAGS, "--resume", "--gelu.lr", "0.5")
    assert "gelu.lr was 0.05 and is 0.5" in changed.err
    assert cli("train", "--out", out, "--resume", "--gelu.lr", "0.5").err == changed.err
    (tmp_path / "empty").mkdir()
    assert "empty is no run folder (it has no recipe.toml)" in cli("train", "--out", tmp_path / "empty", "--resume").err

    taken = cli("train", "-r", "digits", "--out", tmp_path / "two", *FLAGS, "--teacher", out / "teacher")
    assert f"teacher: taken from {out}/teacher\n" in taken.err
    with_other = load(tmp_path / "two")
    assert all(torch.equal(value, load(out).state_dict()[key]) for key, value in with_other.state_dict().items())


ALL_ENGINES = "crypten, gateshare, gateshare-2pc, spu-cheetah, spu-semi2k: runs\n"


def test_dry_run_needs_no_folder_and_writes_none(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("train", "-r", "digits", "--dry-run").out == f"digits: every phase runs\n{ALL_ENGINES}"
    phases = json.loads(cli("train", "-r", "digits", "--dry-run", "--json").out)["dry_run"]
    assert phases == ["teacher", "gelu", "switch", "finetune"]
    assert list(tmp_path.iterdir()) == []


def write_pictures(folder: Path) -> Path:
    for place, name in enumerate(("cat", "dog", "owl")):
        for number in range(8):
            write_picture(folder / name / f"{number}.png", 80 * place + number, size=(20, 16))
    return folder


def test_another_network_and_a_folder_of_pictures(cli: Cli, tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures")
    flags = [
        "--model.arguments.width",
        "8",
        "--data.validation",
        "4",
        "--data.image_size",
        "16",
        "--budget.gates",
        "20%",
    ]
    flags += [part for phase in ("teacher", "gelu", "switch", "finetune") for part in (f"--{phase}.batch", "4")]
    epochs = [part for phase in ("teacher", "gelu", "switch", "finetune") for part in (f"--{phase}.epochs", "1")]
    out = tmp_path / "run"
    said = cli(
        *(
            "train",
            "-r",
            "digits",
            "--model",
            "resnet10",
            "--data",
            tmp_path / "pictures",
            "--out",
            out,
            *flags,
            *epochs,
        )
    )
    assert said.code == 0, said.err
    recipe = load_recipe(out / "recipe.toml")
    assert (recipe.model.name, recipe.model.num_classes, recipe.model.arguments) == ("resnet10", 3, {"width": 8})
    assert load(out)(torch.zeros(1, 3, 16, 16)).shape == (1, 3)
    # A function of one's own, which says no input size.
    own, pictures = "deepshare.zoo.resnet:resnet18", tmp_path / "pictures"
    without_recipe = cli("train", "--model", own, "--data", pictures, *flags, "--dry-run", "--json")
    assert without_recipe.code == 0, without_recipe.err
    found = json.loads(without_recipe.out)
    assert found["dry_run"] == ["plain", "gelu", "switch", "finetune"] and not any(found["engines"].values())


def test_curves_for_tensorboard(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    assert cli("train", "-r", "digits", "--out", out, *FLAGS, "--log", "tensorboard").code == 0
    (file,) = (path for path in (out / "tensorboard").rglob("*") if path.is_file())
    events = EventAccumulator(str(file)).Reload()
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for line in lines:  # one of each phase
        (point,) = events.Scalars(f"{line['phase']}/val_accuracy")
        assert (point.step, point.value) == (1, pytest.approx(line["val_accuracy"]))
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-r", "digits"], ["--out"]),
        (["--dry-run"], ["--recipe", "--model and --data"]),
        (
            ["-r", "digits", "--out", "/nonexistent/run", "--resume"],
            ["no run in /nonexistent/run", "omit --resume"],
        ),
        (
            ["-r", "digits", "--dry-run", "--model", "resnet18"],
            ["images of 1x8x8", "takes 3 channels and the images have 1", "--model.arguments.channels 1"],
        ),
        (["-r", "digits", "--dry-run", "--data", "/nonexistent/pictures"], ["no folder /nonexistent/pictures"]),
        (["-r", "digit", "--dry-run"], ["digit", "digits"]),
        (["-r", "digits", "--dry-run", "--gelu.epoch", "3"], ["gelu.epoch", "gelu.epochs"]),
        (["-r", "digits", "--dry-run", "--gelu.epochs", "many"], ["gelu.epochs", "many"]),
        (["-r", "digits", "--dry-run", "--gelu.epochs"], ["--gelu.epochs", "needs a value"]),
        (["-r", "digits", "--dry-run", "stray"], ["stray"]),
        (["-r", "digits", "--dry-run", "--model", "resnet19"], ["resnet19", "resnet18"]),
        (["-r", "digits", "--dry-run", "--data", "nowhere"], ["nowhere"]),
        (["-r", "cifar100-small", "--dry-run", "--data-dir", "/nonexistent"], ["cifar-100-python"]),
        (["-r", "digits", "--dry-run", "--precision", "8"], ["--precision"]),
        (["-r", "digits", "--dry-run", "--weights", "/nonexistent.pt"], ["/nonexistent.pt"]),
        (["-r", "digits", "--dry-run", "--devices", "0"], ["--devices 0 --num-nodes 1", "at least 1"]),
        (["-r", "digits", "--dry-run", "--num-nodes", "-1"], ["--devices 1 --num-nodes -1", "at least 1"]),
        (["-r", "digits", "--dry-run", "--accelerator", "cpu", "--devices", "9999"], ["9999 processes", "cores"]),
        (["-r", "digits", "--dry-run", "--num-nodes", "3"], ["teacher.batch = 64", "3 processes", "change it"]),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(cli: Cli, arguments: list[str], words: list[str]) -> None:
    said = cli("train", *arguments)
    assert (said.out, said.code) == ("", 2)
    assert said.err.count("\n") == 1
    assert all(word in said.err for word in words), said.err


def test_a_network_with_relu6(cli: Cli, tmp_path: Path) -> None:
    network = ["--model", "torchvision:mobilenet_v2", "--model.arguments.width_mult", 0.25, "--budget.gates", "20%"]
    flags = [*network, "--data", write_pictures(tmp_path), "--data.image_size", 32, "--dry-run"]
    said = cli("train", *flags)
    assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
    assert "--relu6-to-relu" in said.err
    turned = cli("train", *flags, "--relu6-to-relu")
    assert turned.out == f"own: every phase runs\n{ALL_ENGINES}", turned.err
    exact = cli("train", *flags, "--piecewise-to-relu")
    assert exact.out == f"own: every phase runs\n{ALL_ENGINES}", exact.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there, and the test is about its absence")
def test_an_accelerator_that_is_not_there_is_one_line(cli: Cli) -> None:
    said = cli("train", "-r", "digits", "--dry-run", "--accelerator", "cuda")
    assert (said.out, said.code, said.err.count("\n")) == ("", 2, 1)
    assert "--accelerator cuda --devices 1 cannot be had here" in said.err
    assert "--accelerator cpu or auto" in said.err


def test_eval_of_what_is_no_run(cli: Cli, tmp_path: Path) -> None:
    said = cli("eval", tmp_path)
    assert (said.code, said.err) == (
        2,
        f"deepshare: {tmp_path} is no run folder (it has no recipe.toml): give the folder of a finished run\n",
    )


def test_keys() -> None:
    assert read_keys(["--a.b=x=y", "--c-d", "-1"]) == {"a.b": "x=y", "c_d": "-1"}
    with pytest.raises(RecipeError, match="needs a value"):
        read_keys(["--a"])
    with pytest.raises(RecipeError, match="--tensorboard needs a value"):
        read_keys(["--tensorboard", "--gelu.epochs", "1"])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_on_a_terminal_and_lines_elsewhere() -> None:
    terminal, file = Terminal(), io.StringIO()
    bars, lines = make_reporter(terminal), make_reporter(file)
    assert isinstance(bars, Bars)
    assert isinstance(lines, Lines)
    for reporter in (bars, lines):
        reporter.note("teacher: taken from x")
        reporter.begin("switch", 7, 2)
        reporter.step(0.5, 2.0)
        reporter.epoch(LINE, 3725.0)
        reporter.end()
    figures = "loss 1.235  accuracy 50.00%  validation 45.67%  hard gates 43%"
    assert file.getvalue() == f"teacher: taken from x\nswitch 3/7  {figures}  lr 0.01  12.3 s  left 1:02:05\n"
    for word in ("teacher: taken from x", "switch", "3/7 loss 1.235 acc 50.0% val 45.7% hard 43% left 1:02:05"):
        assert word in terminal.getvalue()


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0, 59.6, 3599, 86400)] == ["0:00", "1:00", "59:59", "24:00:00"]
