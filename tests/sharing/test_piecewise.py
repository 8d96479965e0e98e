"""Other activations and max-pooling as ReLUs: the same numbers, and sites that are planned and shared."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare import (
    count_gates,
    export_onnx,
    find_sites,
    maxpool_to_avgpool,
    maxpool_to_relu,
    piecewise_to_relu,
    plan,
    share,
    smooth_to_relu,
)
from deepshare.errors import PlanError, PlanMismatchError, UnsupportedModelError
from deepshare.methods.square import curve
from deepshare.private.ir.program import GatedActivation
from deepshare.private.ir.trace import translate
from deepshare.sharing.gates import shared_relus
from deepshare.sharing.piecewise import rewritten
from deepshare.sharing.plan import Plan
from deepshare.training.shared_models import plan_of, unshared

SIZE = (3, 9, 8)


def sandwich(*middle: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), *middle, nn.Conv2d(4, 4, 1)).eval()


@pytest.mark.parametrize(
    ("activation", "sites"),
    [
        (nn.ReLU6(), {"1.low": "sign", "1.high": "bound"}),
        (nn.Hardtanh(-0.5, 0.7), {"1.low": "sign", "1.high": "bound"}),
        (nn.Hardsigmoid(), {"1.low": "bound", "1.high": "bound"}),
        (nn.Hardswish(), {"1.low": "bound", "1.high": "bound"}),
        (nn.LeakyReLU(0.2), {"1.relu": "sign"}),
        (nn.PReLU(4), {"1.relu": "sign"}),
        (nn.RReLU(), {"1.relu": "sign"}),
    ],
)
def test_piecewise_linear_activations_are_relus(activation: nn.Module, sites: dict[str, str]) -> None:
    model = sandwich(activation)
    rewritten = piecewise_to_relu(model)
    images = 5 * torch.randn(4, *SIZE)
    torch.testing.assert_close(rewritten(images), model(images), rtol=1e-6, atol=1e-6)
    assert {site.name: site.compares for site in find_sites(rewritten, SIZE)} == sites
    assert rewritten.state_dict().keys() == model.state_dict().keys()
    gates = len(sites) * 4 * 9 * 8
    assert translate(rewritten, SIZE).comparisons == translate(model, SIZE).comparisons == gates
    shared = share(rewritten, plan(rewritten, SIZE, "100%", layer_sharing=False))
    assert torch.equal(shared(images), rewritten(images))


def test_bounds_lead_themselves() -> None:
    model = piecewise_to_relu(sandwich(nn.ReLU6(), nn.Conv2d(4, 4, 1), nn.ReLU6()))
    groups = plan(model, SIZE, "50%").groups
    assert [[site.name for site in group.sites] for group in groups] == [["1.low"], ["1.high"], ["3.low"], ["3.high"]]


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("window", [(3, 2, 1), (2, 2, 0), (2, 3, 1), (3, 1, 1), ((2, 3), (3, 1), (0, 1))])
@pytest.mark.parametrize("size", [(3, 9, 9), (3, 8, 11)])
def test_max_pooling_is_comparisons_of_two(size: tuple[int, ...], window: tuple[int, ...], ceil: bool) -> None:
    kernel, stride, padding = window
    model = sandwich(nn.MaxPool2d(kernel, stride, padding, ceil_mode=ceil))
    pairwise, images = maxpool_to_relu(model), torch.randn(3, *size)
    torch.testing.assert_close(pairwise(images), model(images), rtol=0, atol=1e-6)
    sites = find_sites(pairwise, size)
    assert {site.compares for site in sites} == {"pool"}
    (other,) = find_sites(model, size).others
    assert sites.neurons == other.comparisons
    assert translate(pairwise, size).comparisons == translate(model, size).comparisons == sites.neurons


def names_of(made: Plan) -> list[tuple[int, list[str]]]:
    return [(group.prototypes, [site.name for site in group.sites]) for group in made.groups]


class Stem(nn.Module):
    """The beginning of a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.relu, self.pool = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        self.one, self.two = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.act1, self.act2, self.last = nn.ReLU(), nn.ReLU(), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.stem(x)))
        return self.last(self.act2(self.two(self.act1(self.one(x)))).mean((2, 3)))


IMAGE = (3, 16, 16)
POOL = 16 * 8 * 8 * 2 + 8 * 8 * 8 * 2


def test_pools_share_within_the_budget_or_stay_exact_beyond_it() -> None:
    torch.manual_seed(0)
    model = maxpool_to_relu(Stem().eval())
    shared = plan(model, IMAGE, "25%")
    assert [len(group.sites) for group in shared.groups] == [1, 1, 1, 1, 1, 2] and shared.gates <= shared.budget
    assert all(group.prototypes < 8 for group in shared.groups)
    exact = plan(model, IMAGE, "25%", exact_pools=True)
    relus = sum(site.neurons for site in find_sites(Stem(), IMAGE))
    pools = [group for group in exact.groups if "pool" in group.leader.name]
    assert [group.prototypes for group in pools] == [8] * 4 and sum(group.gates for group in pools) == POOL
    assert exact.budget == POOL + relus // 4 >= exact.gates
    for made in (shared, exact):
        assert Plan.from_json(made.to_json()) == made
        network = share(model, made, start="uniform").eval()
        program = translate(network, IMAGE)
        assert count_gates(network, IMAGE) == program.comparisons == made.gates
        assert names_of(plan_of(network, IMAGE)) == names_of(made)
        assert plan(unshared(network), IMAGE, "25%", exact_pools=made is exact) == made
        curve(network)
        assert plan(unshared(network), IMAGE, "25%", exact_pools=made is exact) == made


def test_exact_pools_have_nothing_to_train() -> None:
    model = maxpool_to_relu(Stem().eval())
    network = share(model, plan(model, IMAGE, "25%", exact_pools=True), start="uniform")
    plain = [site for site in shared_relus(network) if site.plain]
    assert len(plain) == 4 and not any(list(site.parameters()) for site in plain)
    program = translate(network.eval(), IMAGE)
    pools = [op for op in program.operations if op.name.startswith("pool") and op.comparisons]
    assert {type(op) for op in pools} == {GatedActivation} and sum(op.comparisons for op in pools) == POOL


def test_average_pooling_instead() -> None:
    averaged = maxpool_to_avgpool(Stem().eval())
    assert find_sites(averaged, IMAGE).others == ()
    assert isinstance(averaged.pool, nn.AvgPool2d) and translate(averaged, IMAGE).comparisons == 4096 - 1024


def test_a_pool_with_dilation_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="1: max-pooling with a dilation"):
        maxpool_to_relu(sandwich(nn.MaxPool2d(2, dilation=2)))


def test_smooth_activations_become_relus() -> None:
    model = smooth_to_relu(sandwich(nn.SiLU(), nn.GELU(), nn.Hardswish(), nn.Sigmoid(), nn.Tanh()))
    assert [type(module).__name__ for module in model.children()][1:-1] == [
        "ReLU",
        "ReLU",
        "ReLU",
        "HardSigmoid",
        "Clamped",
    ]
    for smooth in (nn.SiLU(), nn.CELU(), nn.SELU(), nn.Softplus()):
        with pytest.raises(UnsupportedModelError, match="--smooth-to-relu"):
            plan(sandwich(smooth), SIZE, 10)
        assert plan(smooth_to_relu(sandwich(smooth)), SIZE, "100%").gates > 0


class Bottlenecks(nn.Module):
    """Sites of two shapes that alternate, in two stages."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(3, 8), (8, 4), (4, 8), (8, 4), (4, 8), (8, 4), (4, 8)]
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 1, stride=2 if i == 4 else 1) for i, (a, b) in enumerate(widths))
        self.relus = nn.ModuleList(nn.ReLU() for _ in widths)

    def forward(self, x: Tensor) -> Tensor:
        for layer, relu in zip(self.layers, self.relus, strict=True):
            x = relu(layer(x))
        return x.mean((2, 3))


def test_groups_by_stage() -> None:
    torch.manual_seed(0)
    model = Bottlenecks().eval()
    consecutive, stage = (plan(model, SIZE, "50%", groups=groups) for groups in ("consecutive", "stage"))
    assert len(consecutive.groups) == 7
    names = [[site.name.removeprefix("relus.") for site in group.sites] for group in stage.groups]
    assert names == [["0", "2"], ["1", "3"], ["4", "6"], ["5"]]
    network = share(model, Plan.from_json(stage.to_json()), start="uniform").eval()
    assert count_gates(network, SIZE) == translate(network, SIZE).comparisons == stage.gates
    assert names_of(plan_of(network, SIZE)) == names_of(stage)
    limited = plan(model, SIZE, "50%", groups="stage", max_group=1)
    assert len(limited.groups) == 7
    with pytest.raises(PlanError, match="give one of them"):
        plan(model, SIZE, "50%", groups="stage", per_block=True)
    swapped = Plan(stage.input_size, stage.budget, stage.groups[::-1])
    with pytest.raises(PlanMismatchError, match="another order"):
        share(model, swapped)


def test_a_plan_for_one_input_size_refuses_another(tmp_path: Path) -> None:
    model = Stem().eval()
    network = share(model, plan(model, IMAGE, "25%"))
    for refuse in (
        lambda: count_gates(network, (3, 32, 32)),
        lambda: translate(network, (3, 32, 32)),
        lambda: export_onnx(network, tmp_path / "x.onnx", (3, 32, 32)),
    ):
        with pytest.raises(PlanMismatchError, match="relu has a map of 32x32 and one of 16x16 in the plan"):
            refuse()


class Functions(nn.Module):
    """Whatever a block may call as a function, with a ReLU among them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.hardswish(self.conv(x)), 3, stride=2, padding=1)
        x = F.relu6(x) + F.leaky_relu(x, 0.2) + x.clamp(-1, 1.5)
        return self.last(F.relu(x)) * F.hardsigmoid(x).sigmoid()


def test_functions_become_modules_of_their_block() -> None:
    torch.manual_seed(0)
    model, images = nn.Sequential(Functions(), nn.ReLU()).eval(), torch.randn(2, 3, 8, 8)
    made = piecewise_to_relu(maxpool_to_relu(nn.Sequential(nn.Conv2d(3, 3, 1), nn.MaxPool2d(2)))).eval()
    assert len(find_sites(made, (3, 8, 8))) == 2
    made = rewritten(model, piecewise_to_relu=True, maxpool="exact")
    torch.testing.assert_close(made(images), model(images), rtol=1e-5, atol=1e-5)
    names = [site.name for site in find_sites(made, (3, 8, 8))]
    assert {"0.hardswish1.low", "0.relu61.low", "0.leaky_relu1.relu", "0.clamp1.low", "0.relu1"} <= set(names)
    assert len([name for name in names if ".max_pool2d1." in name]) == 4 and made.state_dict().keys() >= (
        model.state_dict().keys()
    )
    shared = share(made, plan(made, (3, 8, 8), "60%"))
    assert copy.deepcopy(shared)(images).shape == model(images).shape
    assert "0.sigmoid1.low" in [s.name for s in find_sites(smooth_to_relu(model), (3, 8, 8))]
    with pytest.raises(UnsupportedModelError, match="0: it calls clamp and was rewritten before"):
        piecewise_to_relu(smooth_to_relu(model))


class Bounds(nn.Module):
    """Clamps with one bound, and absolute values."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return torch.clamp(x, min=-0.2) + x.clamp(max=0.3).clamp_min(0) + x.clamp_max(0.1) * torch.abs(x - 0.1)


class Unreachable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.abs() if float(x.sum()) > 0 else -x


def test_clamps_with_one_bound_and_absolute_values_are_one_relu_each() -> None:
    torch.manual_seed(0)
    model, images = Bounds().eval(), torch.randn(2, *SIZE)
    made = piecewise_to_relu(model)
    torch.testing.assert_close(made(images), model(images), rtol=1e-6, atol=1e-6)
    sites = find_sites(made, SIZE)
    assert {site.name: site.compares for site in sites} == {
        "clamp1.low": "sign",
        "clamp2.high": "bound",
        "clamp_min1.low": "sign",
        "clamp_max1.high": "bound",
        "abs1.relu": "sign",
    }
    assert not sites.others and translate(made, SIZE).comparisons == translate(model, SIZE).comparisons
    assert isinstance(piecewise_to_relu(Unreachable()), Unreachable)


class Twice(nn.Module):
    """One pool, one bounded ReLU and one ReLU, each called twice, as in many tutorials."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.pool, self.relu, self.bounded = nn.MaxPool2d(2), nn.ReLU(), nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        x = self.bounded(self.pool(self.relu(self.first(x))) - 1)
        x = self.pool(self.relu(self.second(x)))
        return self.bounded(x)


@pytest.mark.parametrize("in_line", [False, True])
def test_modules_that_are_called_twice_have_sites_for_each_call(in_line: bool) -> None:
    torch.manual_seed(0)
    model: nn.Module = Twice()
    if in_line:  # the same modules under two paths
        parts = dict(model.named_children())
        names = ("first", "relu", "pool", "bounded", "second", "relu", "pool", "bounded")
        model = nn.Sequential(*(parts[name] for name in names))
    model, x = model.eval(), torch.randn(2, *SIZE) * 3
    keys = model.state_dict().keys()
    exact = rewritten(model, maxpool="exact", piecewise_to_relu=True)
    torch.testing.assert_close(exact(x), model(x))
    assert exact.state_dict().keys() == keys
    sites = find_sites(exact, SIZE)
    assert len(sites) == len({site.name for site in sites}) == 2 * (1 + 2 + 2)
    made = plan(exact, SIZE, budget="60%")
    assert count_gates(share(exact, made), SIZE) == made.gates


class Dilated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, 2, dilation=2)


def test_a_pool_by_function_with_dilation_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="1 calls max_pool2d: max-pooling with a dilation"):
        maxpool_to_relu(nn.Sequential(nn.ReLU(), Dilated()))


def test_lines_and_volumes_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"1: its ReLU sees an input of shape \(N, 2, 6\)"):
        find_sites(nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU()), (1, 8))
    for check in (find_sites, translate):
        with pytest.raises(UnsupportedModelError, match="three-dimensional convolutions, are not supported"):
            check(nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU()), (1, 8, 8, 8))
        with pytest.raises(UnsupportedModelError, match="0 takes 3 channels and the images have 1: give colour images"):
            check(nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU()), (1, 8, 8))


class Random(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x) if float(x.sum()) > 0 else x


class Overwriting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x, inplace=True) + x


def test_functions_that_cannot_be_reached_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match=r"1: it calls silu, but .*: use nn.SiLU as a module"):
        smooth_to_relu(nn.Sequential(nn.Conv2d(3, 3, 1), Random()))
    with pytest.raises(UnsupportedModelError, match="Overwriting: it overwrites a tensor by silu that it reads again"):
        smooth_to_relu(Overwriting())
    assert isinstance(piecewise_to_relu(Random()), Random)


class OfTwo(nn.Module):
    """Functions of two tensors, and of slopes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.other = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
        self.slopes = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.conv(x), self.other(x)
        largest = torch.maximum(a, b) + a.max(b + 1) * torch.max(a, other=b - 1)
        smallest = torch.minimum(input=a, other=b) - torch.min(a, b + 1)
        return largest * smallest + F.prelu(a, self.slopes) + abs(b) + F.threshold(a, 0.0, 0.0)


def test_the_larger_of_two_tensors_is_a_site_of_its_own() -> None:
    torch.manual_seed(0)
    model, images = OfTwo().eval(), torch.randn(2, *SIZE)
    made = piecewise_to_relu(model)
    torch.testing.assert_close(made(images), model(images), rtol=1e-5, atol=1e-5)
    assert made.state_dict().keys() == model.state_dict().keys()
    sites = find_sites(made, SIZE)
    assert [site.compares for site in sites] == ["bound"] * 5 + ["sign"] * 3 and not sites.others
    assert sites.neurons == 8 * 4 * 9 * 8 == sum(other.comparisons for other in find_sites(model, SIZE).others)
    assert {len(group.sites) for group in plan(made, SIZE, "50%").groups if group.leader.compares == "bound"} == {1}


def test_a_threshold_is_a_relu_where_it_is_continuous() -> None:
    made = piecewise_to_relu(sandwich(nn.Threshold(0.5, 0.5)))
    assert [site.name for site in find_sites(made, SIZE)] == ["1.low"]
    with pytest.raises(UnsupportedModelError, match="1: it still calls threshold after --piecewise-to-relu"):
        find_sites(piecewise_to_relu(sandwich(nn.Threshold(0.5, 0.0))), SIZE)


def test_adaptive_max_pooling_becomes_average_pooling_or_is_refused() -> None:
    model = sandwich(nn.ReLU(), nn.AdaptiveMaxPool2d(1))
    assert not find_sites(maxpool_to_avgpool(model), SIZE).others
    assert find_sites(maxpool_to_relu(model), SIZE).others  # exact as it is
    with pytest.raises(UnsupportedModelError, match="2: it still calls adaptive_max_pool2d after --maxpool shared"):
        find_sites(rewritten(model, maxpool="shared"), SIZE)


def test_a_network_without_relus_is_not_told_to_give_a_flag_twice() -> None:
    model = sandwich(nn.Softshrink())
    for made, said in (
        (model, "--piecewise-to-relu"),
        (piecewise_to_relu(model), "--smooth-to-relu"),
        (rewritten(model, piecewise_to_relu=True, smooth_to_relu=True), "softshrink cannot be written as ReLUs"),
        (piecewise_to_relu(smooth_to_relu(sandwich())), "put nn.ReLU between its layers"),
        (maxpool_to_relu(sandwich(nn.MaxPool2d(2))), "--maxpool shared"),
    ):
        with pytest.raises(UnsupportedModelError, match=said):
            plan(made, SIZE, "50%", exact_pools=True)


class ChannelAttention(nn.Module):
    """As in ECA: weights of channels by a convolution along them."""

    def __init__(self, gate: nn.Module) -> None:
        super().__init__()
        self.conv, self.along, self.gate = nn.Conv2d(3, 6, 3, padding=1), nn.Conv1d(1, 1, 3, padding=1), gate

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        weights: Tensor = self.gate(self.along(x.mean((2, 3)).unsqueeze(1)))
        return x * weights.view(-1, 6, 1, 1)


@pytest.mark.parametrize("gate", [nn.Sigmoid(), nn.Hardtanh()])
def test_bounds_of_a_sequence_are_sites_of_vectors(gate: nn.Module) -> None:
    torch.manual_seed(0)
    made = rewritten(ChannelAttention(gate).eval(), smooth_to_relu=True, piecewise_to_relu=True)
    assert [site.shape for site in find_sites(made, SIZE)] == [(6, 1, 1)] * 2
    shared, images = share(made, plan(made, SIZE, "100%", layer_sharing=False)), torch.randn(2, *SIZE)
    assert torch.equal(shared(images), made(images)) and translate(shared, SIZE).comparisons == 12
