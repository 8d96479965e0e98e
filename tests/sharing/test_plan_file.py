"""Plans as files: saved and loaded, and refused where they are damaged or edited."""

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import deepshare
from deepshare import Plan
from deepshare.errors import PlanError

SIZE = (3, 32, 32)


@pytest.mark.parametrize("options", [{}, {"mapping": "contiguous", "affine": False}, {"per_block": True}])
def test_it_comes_back_from_json_as_it_was(network: nn.Module, tmp_path: Path, options: dict[str, Any]) -> None:
    plan = deepshare.plan(network, SIZE, 8_000, **options)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def edited(plan: Plan, *path: str | int, value: Any) -> str:
    content: Any = json.loads(plan.to_json())
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(content)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("version",), 4, "version 4 .*update deepshare"),
        (("version",), 3, "patch is None"),
        (("version",), 2, "patch is None"),
        (("version",), "1", "version is '1'"),
        (("version",), None, "version is None"),
        (("groups", 0, "sites", 0, "kind"), "nonsense", "reached as 'nonsense'"),
        (("budget",), 10**12, "edited by hand"),
        (("input_size",), [], "input size"),
        (("format",), "something", "not a plan"),
        (("groups", 0, "prototypes"), 17, "17 prototypes"),
        (("groups", 0, "prototypes"), 0, "prototypes is 0"),
        (("groups", 0, "prototypes"), 2.5, "prototypes is 2.5"),
        (("groups", 0, "prototypes"), 4, "edited by hand"),
        (("groups", 0, "sites", 1, "channels"), 8, "different shapes"),
        (("groups", 0, "sites", 1, "name"), "layer1.0.act1", "more than once"),
        (("groups", 0, "sites"), [], "no site"),
        (("groups",), [], "no group"),
        (("groups",), None, "groups is None"),
        (("mapping",), "random", "mapping 'random'"),
        (("budget",), 5_999, "edited by hand"),
        (("input_size",), [3, -32, 32], "input size"),
    ],
)
def test_an_edited_file_is_refused(plan: Plan, tmp_path: Path, path: tuple[str, ...], value: Any, said: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(edited(plan, *path, value=value))
    with pytest.raises(PlanError, match=said) as caught:
        Plan.load(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cut", [0, 1, 100, -2])
def test_a_truncated_file_is_refused(plan: Plan, tmp_path: Path, cut: int) -> None:
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json()[:cut].rstrip())
    with pytest.raises(PlanError, match=str(file)):
        Plan.load(file)


@pytest.mark.parametrize("text", ["1" * 5_000, "[" * 100_000])
def test_json_that_python_refuses_is_one_line(text: str) -> None:
    with pytest.raises(PlanError, match="not valid JSON"):
        Plan.from_json(text)


def test_a_file_that_is_not_text_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("bytes", "missing", "."):
        with pytest.raises(PlanError, match="cannot read"):
            Plan.load(tmp_path / name)


def test_a_file_that_cannot_be_written(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot write"):
        plan.save(tmp_path / "no" / "plan.json")
