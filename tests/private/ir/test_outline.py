import json
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from deepshare import plan, share, zoo
from deepshare.errors import EngineError
from deepshare.private.ir import outline
from deepshare.private.ir.program import Program
from deepshare.private.ir.trace import translate


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(0)
    model = zoo.resnet18(width=4, num_classes=7)
    return translate(share(model, plan(model, (3, 16, 16), "10%"), start="uniform"), (3, 16, 16))


def test_it_tells_everything_but_the_hidden_numbers(program: Program) -> None:
    read = outline.parse(outline.dump(program))
    assert outline.dump(read) == outline.dump(program) == outline.dump(program.outline())
    assert read.comparisons == program.comparisons and read.input_size == (3, 16, 16)
    for ours, theirs in zip(program.operations, read.operations, strict=True):
        for name in ours.hidden:
            assert getattr(theirs, name).is_meta and getattr(theirs, name).shape == getattr(ours, name).shape


def test_it_is_the_same_for_other_weights(program: Program) -> None:
    torch.manual_seed(1)
    model = zoo.resnet18(width=4, num_classes=7)
    other = translate(share(model, plan(model, (3, 16, 16), "10%"), start="uniform"), (3, 16, 16))
    assert outline.digest(other) == outline.digest(program)
    more = translate(share(model, plan(model, (3, 16, 16), "20%")), (3, 16, 16))
    assert outline.digest(more) != outline.digest(program)


def test_another_version_is_refused(program: Program) -> None:
    content = json.loads(outline.dump(program)) | {"version": 99}
    with pytest.raises(EngineError, match="does not speak version 2 of the outline"):
        outline.parse(json.dumps(content))


def test_forward_references_and_false_leaders_are_refused(program: Program) -> None:
    content = json.loads(outline.dump(program))
    content["operations"][2]["inputs"] = [9]
    with pytest.raises(EngineError, match="reads what is not there yet"):
        outline.parse(json.dumps(content))
    for wrong in ({"leader": 1}, {"leader": -1}, {"leader": 99}, {"leads": True}):
        content = json.loads(outline.dump(program))
        follower = next(entry for entry in content["operations"] if entry.get("leads") is False)
        follower.update(wrong)
        with pytest.raises(EngineError, match="follows no leader"):
            outline.parse(json.dumps(content))


def test_orders_that_are_none_are_refused() -> None:
    content = json.loads(outline.dump(translate(Transposed(), (2, 3, 4))))
    assert content["operations"][1]["order"] == [1, 0, 2]
    for wrong in ({"order": [1, 1, 2]}, {"order": [1, 0]}, {"order": [0, 1, 2]}, {"order": [1, 0, 3]}, {"shape": [24]}):
        changed = json.loads(json.dumps(content))
        changed["operations"][1].update(wrong)
        with pytest.raises(EngineError, match="is no order of dimensions"):
            outline.parse(json.dumps(changed))


class Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_is_an_engine_error_and_nothing_else(program: Program, data: st.DataObject) -> None:
    text = outline.dump(program)
    start = data.draw(st.integers(0, len(text) - 1))
    broken = text[:start] + data.draw(st.text(max_size=8)) + text[start + data.draw(st.integers(0, 20)) :]
    with suppress(EngineError):
        outline.parse(broken)
