"""share() converts a model however it calls its ReLUs, or refuses it with the reason."""

import copy
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import deepshare
from deepshare import Plan, count_gates, find_sites, share, zoo
from deepshare.errors import DeepShareError, PlanMismatchError, UnsupportedModelError
from deepshare.sharing.convert import relu6_to_relu, replace_sites
from deepshare.sharing.gates import SharedReLU
from deepshare.sharing.plan import Group

SIZE = (3, 16, 16)


def identity(model: nn.Module, size: tuple[int, ...] = SIZE) -> Plan:
    sites = find_sites(model, size)
    return Plan(sites.input_size, sites.neurons, tuple(Group(site.channels, (site,)) for site in sites))


class Functional(nn.Module):
    """Function calls, a module used twice, and a function on features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor, shift: float = 0.5) -> Tensor:
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x) - shift)
        return F.relu(self.head(torch.relu(x - shift).mean((2, 3))), inplace=True)


class Rereads(nn.Module):
    """In-place ReLUs whose input is read again: by the same block, by a view, by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.last = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        y = self.act(x)
        z = y - x.mean()
        half = z[:, :2]
        F.relu(half, inplace=True)
        return self.last(z + 0.1) - x


class ReturnsBoth(nn.Module):
    """An in-place ReLU whose input is returned beside its output, so that only the caller reads it again."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        self.act(y)
        return y


class Doubles(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Subclass(nn.Module):
    """A ReLU that does more than ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.act = Doubles()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x))


class Features(nn.Module):
    """A map of one position, followed by features of as many channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 16)
        self.fc = nn.Linear(4, 4)
        self.acts = nn.ModuleList([nn.ReLU(), nn.ReLU()])

    def forward(self, x: Tensor) -> Tensor:
        return self.acts[1](self.fc(self.acts[0](self.conv(x)).flatten(1)))


class Callers(nn.Module):
    """One ReLU object that two blocks hold."""

    def __init__(self) -> None:
        super().__init__()
        relu = nn.ReLU()
        self.one = nn.Sequential(nn.Conv2d(3, 4, 1), relu)
        self.two = nn.Sequential(nn.Conv2d(4, 4, 1), relu)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x) - 1)


@pytest.mark.parametrize(
    "build", [Functional, Rereads, Callers, ReturnsBoth, Subclass, Features, lambda: zoo.resnet18(width=4)]
)
@pytest.mark.parametrize("training", [False, True])
def test_the_identity_plan_changes_nothing(build: type[nn.Module], training: bool) -> None:
    model = build().train(training)
    plan = identity(model)
    shared = share(model, plan)
    images = torch.randn(4, *SIZE)
    expected = model(images)
    assert torch.equal(shared(images), expected)
    assert count_gates(shared, SIZE) == count_gates(model, SIZE) == plan.gates
    assert shared.training == training


@pytest.mark.parametrize("build", [Functional, Rereads, Callers, ReturnsBoth, Subclass, Features])
def test_the_identity_plan_keeps_every_gradient(build: type[nn.Module]) -> None:
    model = build()
    shared = share(model, identity(model))
    images = torch.randn(4, *SIZE)
    for network in (model, shared):
        network(images).square().sum().backward()
    gradients = {name: value.grad for name, value in shared.named_parameters()}
    for name, value in model.named_parameters():
        if value.grad is not None:
            torch.testing.assert_close(gradients[name], value.grad)


def test_reread_inputs_are_seen() -> None:
    places = find_sites(Rereads(), SIZE).places
    assert [place.rewrites for place in places] == [True, True, False]


def test_old_keys_stay_and_only_alpha_and_beta_are_new() -> None:
    model = Functional()
    shared = share(model, identity(model))
    old, new = set(model.state_dict()), set(shared.state_dict())
    names = [site.name for site in find_sites(model, SIZE)]
    assert new - old == {f"{name}.{part}" for name in names for part in ("alpha", "beta")}
    assert old <= new
    assert "unused.weight" in old
    assert all(torch.equal(shared.state_dict()[key], value) for key, value in model.state_dict().items())


def test_the_model_stays_as_it_was() -> None:
    model = Functional()
    keys, before = list(model.state_dict()), repr(model)
    share(model, identity(model))
    assert list(model.state_dict()) == keys
    assert repr(model) == before
    assert "forward" not in model.__dict__


def test_a_traced_block_keeps_its_class_and_its_arguments() -> None:
    model = Functional()
    shared = share(model, identity(model))
    images = torch.randn(2, *SIZE)
    assert isinstance(shared, Functional)
    assert torch.equal(shared(images, shift=2.0), model(images, shift=2.0))


@pytest.mark.parametrize("build", [Functional, Rereads, lambda: zoo.resnet18(width=4)])
def test_copies_and_pickles_work_and_stand_alone(build: type[nn.Module]) -> None:
    model = build()
    shared = share(model, deepshare.plan(model, SIZE, "40%"))
    images = torch.randn(2, *SIZE)
    shared(images).sum().backward()
    shared.eval()
    expected = shared(images)
    for twin in (copy.deepcopy(shared), pickle.loads(pickle.dumps(shared))):
        assert torch.equal(twin(images), expected)
        for parameter in twin.parameters():
            nn.init.zeros_(parameter)
        assert torch.equal(shared(images), expected)


@pytest.mark.parametrize("build", [Functional, Rereads, lambda: zoo.resnet18(width=4)])
def test_it_compiles_whole_and_exports(build: type[nn.Module]) -> None:
    model = build()
    shared = share(model, deepshare.plan(model, SIZE, "40%")).eval()
    images = torch.randn(2, *SIZE)
    expected = shared(images)
    compiled = torch.compile(shared, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), expected)
    exported = torch.export.export(shared, (images,)).module()
    torch.testing.assert_close(exported(images), expected)


def test_it_trains_under_distributed_data_parallel(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = Functional()
        shared = share(model, deepshare.plan(model, SIZE, "40%"))
        del shared.unused
        parallel = DistributedDataParallel(copy.deepcopy(shared))
        images = torch.randn(4, *SIZE)
        for network in (shared, parallel):
            network(images).square().sum().backward()
        for (name, ours), theirs in zip(shared.named_parameters(), parallel.parameters(), strict=True):
            assert torch.equal(ours.grad, theirs.grad), name  # type: ignore[arg-type]
    finally:
        torch.distributed.destroy_process_group()


def test_gates_are_those_of_the_plan() -> None:
    model = zoo.resnet18(width=8)
    for budget in (1_360, 3_000, "10%"):
        plan = deepshare.plan(model, (3, 32, 32), budget)
        assert count_gates(share(model, plan), (3, 32, 32)) == plan.gates


def test_a_shared_channel_uses_the_leaders_gate() -> None:
    model = nn.Sequential(nn.Identity(), nn.ReLU(), nn.BatchNorm2d(3), nn.ReLU()).eval()
    shared = share(model, deepshare.plan(model, (3, 1, 1), 1))
    images = torch.tensor([[-1.0, 2.0, 3.0], [1.0, -2.0, 3.0]]).view(2, 3, 1, 1)
    first, second = shared.get_submodule("1"), shared.get_submodule("3")
    after = first(images).flatten(1)
    assert after.tolist() == [[0.0, 0.0, 0.0], [1.0, -2.0, 3.0]]
    assert torch.equal(second(images).flatten(1), after)


def test_uniform_start_values_come_from_the_generator() -> None:
    model = zoo.resnet18(width=4)
    plan = deepshare.plan(model, SIZE, "50%")
    one, two = (share(model, plan, start="uniform", generator=torch.Generator().manual_seed(7)) for _ in range(2))
    values = torch.cat([module.alpha.detach() for module in one.modules() if isinstance(module, SharedReLU)])
    assert values.min() < -0.9
    assert values.max() > 0.9
    assert values.abs().max() <= 1
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def test_without_affine_there_is_nothing_new_to_learn() -> None:
    model = zoo.resnet18(width=4)
    shared = share(model, deepshare.plan(model, SIZE, "50%", affine=False))
    assert list(shared.state_dict()) == list(model.state_dict())


def test_new_parameters_join_the_format_of_the_model() -> None:
    model = zoo.resnet18(width=4).bfloat16()
    shared = share(model, identity(model))
    assert {value.dtype for value in shared.parameters()} == {torch.bfloat16}


def test_a_plan_for_another_model_touches_nothing() -> None:
    with pytest.raises(PlanMismatchError):
        share(zoo.resnet18(width=8), identity(zoo.resnet18(width=4)))


def test_all_problems_come_at_once_with_their_cures() -> None:
    class Mode(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(2 * x if self.training else x)

    class Repeated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.inner(x))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mode = Mode()
            self.repeated = Repeated()
            self.listed = nn.ModuleList([nn.ReLU()])

        def forward(self, x: Tensor) -> Tensor:
            return self.listed[0](self.repeated(self.repeated(self.mode(x))))

    model = Net()
    with pytest.raises(UnsupportedModelError) as caught:
        share(model, identity(model))
    problems = caught.value.problems
    assert len(problems) == 2
    assert problems[0].startswith("mode: its forward reads self.training")
    assert problems[1].startswith("repeated: it runs 2 times")
    assert pickle.loads(pickle.dumps(caught.value)).problems == problems


class Quiet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.conv(x)
        return F.relu(x)


class Chance(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x) * (2 if random.random() < 0.5 else 1)


def replaced_forward() -> nn.Module:
    model = Functional()
    vars(model)["forward"] = lambda x: F.relu(x) * 7
    return model


@pytest.mark.parametrize(
    ("build", "said"),
    [(Quiet, "no_grad"), (Chance, "random numbers"), (replaced_forward, "replaced on the instance")],
)
def test_what_tracing_would_get_wrong_is_refused(build: Callable[[], nn.Module], said: str) -> None:
    model = build()
    with pytest.raises(UnsupportedModelError, match=said):
        share(model, identity(model))


def test_a_model_that_keeps_an_activation_is_told_the_cure() -> None:
    model = Functional()
    plan = identity(model)
    vars(model)["kept"] = model(torch.randn(2, *SIZE))
    with pytest.raises(UnsupportedModelError, match="Functional cannot be copied"):
        share(model, plan)


def test_features_follow_a_map_of_one_position() -> None:
    model = Features()
    plan = deepshare.plan(model, SIZE, 2)
    assert [len(group.sites) for group in plan.groups] == [2]
    assert share(model, plan)(torch.randn(5, *SIZE)).shape == (5, 4)


def test_an_unknown_start_is_refused() -> None:
    model = Functional()
    with pytest.raises(DeepShareError, match="identity or uniform"):
        share(model, identity(model), start="unifrom")  # type: ignore[arg-type]


def test_a_module_in_a_list_is_swapped() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.acts = nn.ModuleList([nn.ReLU(), nn.ReLU()])

        def forward(self, x: Tensor) -> Tensor:
            return self.acts[1](self.acts[0](x) - 1)

    shared = share(Net(), identity(Net()))
    assert isinstance(shared.get_submodule("acts.0"), SharedReLU)
    assert isinstance(shared.get_submodule("acts.1"), SharedReLU)


def test_sites_can_be_replaced_by_anything() -> None:
    model = Functional()
    smooth = replace_sites(model, find_sites(model, SIZE), lambda site: nn.GELU())
    assert sum(isinstance(module, nn.GELU) for module in smooth.modules()) == 4
    assert count_gates(smooth, SIZE) == 0


def test_relu6_becomes_relu_when_asked() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU6(inplace=True))
    plain = relu6_to_relu(model)
    images = torch.randn(2, *SIZE) * 20
    assert torch.equal(plain(images), F.relu(model[0](images)))
    assert isinstance(model[1], nn.ReLU6)
    assert plain.get_submodule("1").inplace
