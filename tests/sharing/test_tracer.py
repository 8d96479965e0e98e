"""Traced blocks accept None, lists and keywords like the original blocks."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare import count_gates, find_sites, plan, share
from deepshare.errors import UnsupportedModelError

SIZE = (4, 8, 8)


class Branches(nn.Module):
    """A branch on None, a default that is a number, and a keyword-only list that is written to and grows."""

    def forward(
        self, x: Tensor, shortcut: Tensor | None = None, /, scale: float = 2.0, *, seen: list[Tensor] | None = None
    ) -> Tensor:
        shortcut = x - 1 if shortcut is None else shortcut
        out = F.relu(x - 0.5) * scale + F.relu(shortcut)
        if seen is not None:
            seen[0] = seen[0] + out
            seen.append(F.relu(out - 1))
        return out


class Containers(nn.Module):
    """Lists, tuples and dicts of tensors, each in another."""

    def forward(self, parts: list[tuple[Tensor, Tensor]], *more: Tensor, **named: dict[str, Tensor]) -> list[Tensor]:
        (one, two), (three, four) = parts
        return [F.relu(one - two), F.relu(three - four) + named["extra"]["x"], F.relu(more[1] - 1)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.with_none = Branches()
        self.with_list = Branches()
        self.containers = Containers()

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        seen = [x]
        y = self.with_none(x, scale=3.0) + self.with_list(x, x - 2, seen=seen)
        one, two, three = self.containers([(x, y), (y, seen[0])], x, seen[1], extra={"x": x})
        return one + two + three


class Slices(nn.Module):
    """Runs slices of a Sequential, which are containers that nothing holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layers[2:](F.relu(self.layers[:2](x) - 0.1)))


def shared_and_plain(build: Callable[[], nn.Module]) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = build()
    return share(model, plan(model, SIZE, "100%", layer_sharing=False)), model


@pytest.mark.parametrize(("build", "sites"), [(Net, 8), (Slices, 3)])
def test_the_identity_plan_changes_nothing(build: Callable[[], nn.Module], sites: int) -> None:
    shared, model = shared_and_plain(build)
    images = torch.randn(2, *SIZE)
    expected = model(images)
    assert len(find_sites(model, SIZE)) == sites
    assert count_gates(shared, SIZE) == count_gates(model, SIZE)
    for twin in (shared, copy.deepcopy(shared), pickle.loads(pickle.dumps(shared))):
        assert torch.equal(twin(images), expected)
    compiled: Any = torch.compile(shared, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), expected)
    torch.testing.assert_close(torch.export.export(shared, (images,)).module()(images), expected)


def test_a_list_is_written_to_as_before() -> None:
    shared, model = shared_and_plain(Net)
    x = torch.randn(2, *SIZE)
    lists = [[x.clone()], [x.clone()]]
    for network, seen in zip((shared, model), lists, strict=True):
        network.with_list(x, x, seen=seen)
    assert len(lists[0]) == len(lists[1]) == 2
    assert all(torch.equal(a, b) for a, b in zip(*lists, strict=True))


def test_keywords_and_defaults_stay() -> None:
    shared, model = shared_and_plain(Net)
    x = torch.randn(2, *SIZE)
    assert torch.equal(shared.with_none(x), model.with_none(x))
    assert torch.equal(shared.with_none(x, None, 5.0), model.with_none(x, scale=5.0))


def test_a_block_that_is_called_in_another_way_says_so() -> None:
    shared, _ = shared_and_plain(Net)
    x = torch.randn(2, *SIZE)
    with pytest.raises(UnsupportedModelError, match=r"^with_none: its arguments have None, lists or flags in other"):
        shared.with_none(x, x)
    with pytest.raises(UnsupportedModelError, match=r"^with_list: its arguments have None, lists or flags in other"):
        shared.with_list(x, x, seen=[x, x])
