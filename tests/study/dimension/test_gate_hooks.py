"""Gates are seen at every site of any network, as the network itself computes them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import deepshare
from deepshare import zoo
from deepshare.errors import UnsupportedModelError
from deepshare.sharing.gates import set_progress
from deepshare.sharing.sites import Site
from deepshare.study.dimension.gate_hooks import watch
from deepshare.training.build import gelu_network

SIZE = (3, 16, 16)


class Functions(nn.Module):
    """One ReLU module called twice, in place, and a function; then features without a map."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(4, 5)
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.one(x))
        x = self.relu(self.two(x))
        return F.relu(self.head(x.mean((2, 3))))


def seen(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}

    def see(site: Site, gates: Tensor) -> None:
        assert gates.shape == (len(images), *site.shape)
        found[site.name] = gates

    with torch.no_grad(), watch(model, images.shape[1:]).run(see) as run:
        run(images)
    return found


def test_functions_and_reused_modules_are_seen_one_by_one() -> None:
    model, images = Functions(), torch.randn(3, *SIZE)
    gates = seen(model, images)
    first = model.one(images)
    second = model.two(first.relu())
    third = model.head(second.relu().mean((2, 3)))
    expected = [first >= 0, second >= 0, (third >= 0)[:, :, None, None]]
    assert len(gates) == 3
    assert all(torch.equal(a, b) for a, b in zip(gates.values(), expected, strict=True))


def test_groups_are_runs_of_equal_shape() -> None:
    groups = watch(zoo.resnet18(num_classes=5, width=4), (3, 32, 32)).groups
    assert [len(group) for group in groups] == [4, 4, 4, 4]
    assert groups[1][0].name == "layer2.0.act1"


def test_a_shared_network_is_seen_by_its_own_signs_and_in_its_own_groups() -> None:
    plain = zoo.resnet18(num_classes=5, width=4, depth=10).eval()
    plan = deepshare.plan(plain, SIZE, "30%", max_group=1)
    shared = deepshare.share(plain, plan)
    images = torch.randn(2, *SIZE)
    gates = seen(shared, images)
    assert list(gates) == [site.name for site in plan.sites]
    assert [len(group) for group in watch(shared, SIZE).groups] == [1] * 8
    first = next(iter(gates.values()))
    assert torch.equal(first, next(iter(seen(plain, images).values())))
    assert first[:, 2:].any()


def test_a_soft_network_and_a_teacher_are_seen_too() -> None:
    plain = zoo.resnet18(num_classes=5, width=4, depth=10).eval()
    teacher = gelu_network(plain, SIZE)
    assert list(seen(teacher, torch.randn(2, *SIZE))) == [site.name for site in deepshare.find_sites(plain, SIZE)]
    shared = deepshare.share(plain, deepshare.plan(plain, SIZE, "30%"))
    set_progress(shared, 0.0)
    assert len(seen(shared, torch.randn(2, *SIZE))) == 8


def test_hooks_and_mode_are_as_before() -> None:
    plain = zoo.resnet18(num_classes=5, width=4, depth=10)
    shared = deepshare.share(plain, deepshare.plan(plain, SIZE, "30%")).train()
    weights = {key: value.clone() for key, value in shared.state_dict().items()}
    seen(shared, torch.randn(4, *SIZE))
    assert shared.training
    assert not any(module._forward_pre_hooks for module in shared.modules())
    assert all(torch.equal(value, weights[key]) for key, value in shared.state_dict().items())


def test_a_network_without_gates_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="neither ReLUs nor shared gates"):
        watch(nn.Conv2d(3, 4, 3), SIZE)


def test_a_gelu_that_runs_twice_is_refused() -> None:
    gelu = nn.GELU()
    with pytest.raises(UnsupportedModelError, match="called more than once"):
        watch(nn.Sequential(nn.Conv2d(3, 4, 3), gelu, gelu), SIZE)
