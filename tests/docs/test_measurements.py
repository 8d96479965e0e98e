"""The page of measurements is what its records say, and says which of them are older than their code."""

import json
import subprocess

import pytest

from dev import measurements
from dev.measurements import MEASUREMENTS, Measurement
from tests.docs.pages import ROOT

COMMITS = subprocess.run(["git", "log", "-1"], cwd=ROOT, capture_output=True).returncode == 0
MEASURED = [one for one in MEASUREMENTS if one.file.is_file()]


@pytest.mark.skipif(not COMMITS, reason="not a clone: the age of a record cannot be told")
def test_the_page_is_what_the_records_say() -> None:
    text = measurements.PAGE.read_text(encoding="utf-8")
    between = text.partition(measurements.START)[2].partition(measurements.END)[0]
    stale = [one.name for one in MEASURED if measurements.state(one) != "current"]
    assert between.strip() == measurements.records().strip(), f"stale: {stale}: python dev/measurements.py --page"


@pytest.mark.parametrize("one", MEASUREMENTS, ids=lambda one: one.name)
def test_a_measurement_names_files(one: Measurement) -> None:
    assert [path for path in (one.command.split()[0], *one.code) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("one", MEASURED, ids=lambda one: one.name)
def test_a_record_says_on_what(one: Measurement) -> None:
    record = json.loads(one.file.read_text(encoding="utf-8"))
    assert record["output"] and record["processor"] and record["load_before"] >= 0
    assert record["command"] == f"python {one.command}"
