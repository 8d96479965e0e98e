"""The page of measurements is what its records say, and says which of them are older than their code."""

import json
import warnings
from itertools import pairwise
from pathlib import Path

import pytest

from dev import measurements
from dev.measurements import MEASUREMENTS, Measurement
from tests.docs.pages import ROOT

MEASURED = [one for one in MEASUREMENTS if one.file.is_file()]


def test_the_page_is_what_the_records_say() -> None:
    text = measurements.PAGE.read_text(encoding="utf-8")
    between = text.partition(measurements.START)[2].partition(measurements.END)[0]
    assert plain(between) == plain(measurements.records()), "python dev/measurements.py --page writes it"


def plain(text: str) -> str:
    """The page without its marks of age, which the next change of the code makes wrong, and `make docs` right."""
    return text.replace(f" {measurements.STALE}", "").strip()


def test_records_that_are_older_than_their_code_are_named() -> None:
    if stale := [one.name for one in MEASURED if measurements.state(one) != "current"]:
        warnings.warn(f"measured before the code changed: {', '.join(stale)}: make measurements", stacklevel=1)


def test_a_change_of_the_code_makes_a_record_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "ROOT", tmp_path)
    monkeypatch.setattr(measurements, "RECORDS", tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "bench.py").write_text("print(1)\n")
    code = tmp_path / "code" / "gate.py"
    code.write_text("def gate(x):\n    return x >= 0\n")
    one = Measurement("gate", "A gate", "bench.py", ("code",))
    assert measurements.state(one) == "not measured"
    one.file.write_text(json.dumps({"command": "python bench.py", "code": measurements.fingerprint(one)}))
    assert measurements.state(one) == "current"
    code.write_text('"""Gates."""\n\n\ndef gate(x):\n    """Compare."""\n    # as in the paper\n    return x >= 0\n')
    assert measurements.state(one) == "current"
    code.write_text("def gate(x):\n    return x > 0\n")
    assert measurements.state(one) == "stale"
    assert measurements.state(Measurement("gate", "A gate", "bench.py --fast", ("code",))) == "other command"


@pytest.mark.parametrize("one", MEASUREMENTS, ids=lambda one: one.name)
def test_a_measurement_names_files(one: Measurement) -> None:
    assert [path for path in (one.command.split()[0], *one.code) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("one", MEASURED, ids=lambda one: one.name)
def test_a_record_says_on_what(one: Measurement) -> None:
    record = json.loads(one.file.read_text(encoding="utf-8"))
    assert record["output"] and record["processor"] and record["load_before"] >= 0
    assert record["command"] == f"python {one.command}"


def test_deepshare_is_ahead_of_autorep_in_the_latency_table() -> None:
    rows = [[cell.strip() for cell in line.split("|")] for line in measurements.latency_table().splitlines()]
    column = 4 + measurements.RATIOS.index("x time in all")
    pairs = [(one, two) for one, two in pairwise(rows) if "DeepShare" in one and "AutoReP" in two and len(one) == 12]
    assert len(pairs) >= 7
    assert [one[1:3] for one, two in pairs if float(one[column]) <= float(two[column])] == []
