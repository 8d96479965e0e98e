"""Two processes train as one does on the same batches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from deepshare.training.run.checkpoint import read_weights
from tests.training import two_processes

pytestmark = pytest.mark.linux

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that two processes trained each method in; one start of processes, which takes longest, for all."""
    out = tmp_path_factory.mktemp("both")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = [str(ROOT / "tests/training/two_processes.py"), str(out)]
    done = subprocess.run([*command, *script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize(("method", "teacher"), [("deepshare", "teacher"), ("autorep", "plain"), ("senet", "plain")])
def test_two_processes_give_the_gradients_of_one(method: str, teacher: str, both: Path, tmp_path: Path) -> None:
    # One batch of 32 images in each phase, shared out as 16 and 16: the steps are the gradients of its losses.
    two_processes.train(tmp_path, method)
    for folder in (teacher, ""):
        alone, _ = read_weights(tmp_path / folder / "model.safetensors")
        together, _ = read_weights(both / method / folder / "model.safetensors")
        assert alone.keys() == together.keys()
        for key, value in alone.items():
            assert torch.allclose(value.float(), together[key].float(), rtol=0, atol=1e-6), (folder, key)
    start = two_processes.Small()
    assert not torch.allclose(alone["conv1.weight"], start.conv1.weight, rtol=0, atol=1e-3)
    records = [(run / "metrics.jsonl").read_text().splitlines() for run in (tmp_path, both / method)]
    for one, two in zip(*(map(json.loads, record) for record in records), strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert (two["accuracy"], two["val_accuracy"]) == (one["accuracy"], one["val_accuracy"])
