"""Committed runs compute what they did when their logits were written down."""

import json

import pytest
import torch

from tests.training.run.committed import FILE, logits, runs

KNOWN = json.loads(FILE.read_text(encoding="utf-8"))


def test_every_run_is_known() -> None:
    assert sorted(KNOWN) == sorted(runs())


@pytest.mark.parametrize("name", KNOWN)
def test_logits(name: str) -> None:
    found = logits(name)
    for key, values in KNOWN[name].items():
        actual, expected = (torch.tensor(given, dtype=torch.float64) for given in (found[key], values))
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
