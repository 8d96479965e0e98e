"""Networks by name: every entry is its run's own record, and only files with its checksums are loaded."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import deepshare
from deepshare.errors import CheckpointError
from deepshare.training.build import load
from deepshare.training.catalog import record
from deepshare.training.run.folder import run_folder
from deepshare.training.run.networks import VARIABLE, card, checksum, find, locate, names
from dev.networks import keep, make

ROOT = Path(__file__).parents[3]
SHARED = "cifar100-resnet18w16-1536"


@pytest.mark.parametrize("name", names())
def test_an_entry_is_the_record_of_its_run(name: str) -> None:
    network = find(name)
    folder = locate(network)
    assert make(name, folder, network.about, ROOT / "results") == network
    assert (folder / "README.md").read_text(encoding="utf-8") == card(network)
    assert network.test == record(folder).test
    assert not [file for file in folder.iterdir() if file.suffix in (".pt", ".pth", ".pkl")]


def test_a_name_loads_what_its_folder_loads() -> None:
    images = torch.randn(2, 3, 32, 32)
    network = deepshare.load(SHARED)
    assert deepshare.count_gates(network, (3, 32, 32)) == find(SHARED).gates == 1536
    assert torch.equal(network(images), load(ROOT / "results/cifar100-small/gates-1.25")(images))


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_folder(SHARED) == ROOT / "results/cifar100-small/gates-1.25"
    (tmp_path / SHARED).mkdir()
    assert run_folder(SHARED) == Path(SHARED)
    assert run_folder("runs/other") == Path("runs/other")


def test_networks_may_lie_in_another_folder_and_must_be_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(
        CheckpointError, match=r"does not have the network .* set DEEPSHARE_NETWORKS to the folder results"
    ):
        deepshare.load(SHARED)
    copy = tmp_path / SHARED
    shutil.copytree(ROOT / "results/cifar100-small/gates-1.25", copy)
    assert run_folder(SHARED) == copy
    deepshare.load(SHARED)
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=rf"model\.safetensors is missing or not that of {SHARED}"):
        deepshare.load(SHARED)
    (copy / "model.safetensors").write_bytes(whole)
    (copy / "plan.json").unlink()
    with pytest.raises(CheckpointError, match=r"plan\.json is missing"):
        deepshare.load(SHARED)


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(CheckpointError, match=f'did you mean "{SHARED}"'):
        find("cifar100-resnet18w16-1563")
    with pytest.raises(CheckpointError, match="or a name that deepshare networks lists"):
        deepshare.load("no-such-network")


def test_a_run_is_kept_without_paths_of_this_machine(tmp_path: Path) -> None:
    run, results = tmp_path / "run", tmp_path / "results"
    shutil.copytree(ROOT / "results/cifar100-small/gates-1.25", run)
    text = (run / "recipe.toml").read_text(encoding="utf-8")
    (run / "recipe.toml").write_text(text.replace("[teacher]\n", '[teacher]\nweights = "/home/me/teacher"\n'))
    known = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    (run / "environment.json").write_text(json.dumps({**known, "command": ["deepshare", "train", "--out", "/tmp/x"]}))
    with pytest.raises(CheckpointError, match="has a path: give --command"):
        keep(run, results / "kept", None)
    kept = keep(run, results / "kept", "deepshare compare --study fair")
    assert "/home/me" not in (kept / "recipe.toml").read_text(encoding="utf-8")
    network = make("some", kept, "Some network.", results)
    assert (network.run, network.command) == ("kept", "deepshare compare --study fair")
    assert network.files["model.safetensors"] == checksum(run / "model.safetensors")
    assert locate(replace(network, name="other"), results) == kept
    with pytest.raises(CheckpointError, match="give --keep"):
        make("some", run, "Some network.", results)
