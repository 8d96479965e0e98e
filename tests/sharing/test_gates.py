"""The arithmetic of SharedReLU: formula, gradients, switch, memory formats and number formats."""

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare.errors import DeepShareError, UnsupportedModelError
from deepshare.sharing import activation
from deepshare.sharing.convert import Overwrite
from deepshare.sharing.gates import GateCell, SharedReLU, hard_share, prototype_of, set_progress, set_sharpness


def group(sites: int, channels: int, prototypes: int, progress: float = 1.0, **options: Any) -> list[SharedReLU]:
    """A leader and its followers, with uniform alpha and beta."""
    cell = GateCell()
    acts = [SharedReLU(channels, prototypes, cell=cell, position=k, **options) for k in range(sites)]
    generator = torch.Generator().manual_seed(channels + prototypes)
    for act in acts:
        act.start_uniform(generator)
    set_progress(nn.ModuleList(acts), progress)
    return acts


def parameters(acts: list[SharedReLU]) -> list[Tensor]:
    return [value for act in acts for value in act.parameters()]


def naive(act: SharedReLU, x: Tensor, leader: Tensor, hard: int, sharpness: float = 1.0) -> Tensor:
    """The formula, neuron by channel; the last `hard` channels use the hard gate."""
    columns = []
    for c in range(act.channels):
        prototype = leader[:, int(act.pi[c])]
        if c >= act.channels - hard:
            gate = (prototype.detach() >= 0).to(x.dtype)
        else:
            gate = (1 + torch.erf(sharpness * prototype / math.sqrt(2))) / 2
        columns.append(x[:, c] * (act.alpha[c] * gate + act.beta[c]))
    return torch.stack(columns, 1)


def gradients(output: Tensor, *inputs: Tensor) -> list[Tensor]:
    weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    return list(torch.autograd.grad((output * weight).sum(), inputs, allow_unused=True))


@pytest.mark.parametrize("mapping", ["round-robin", "contiguous"])
@pytest.mark.parametrize("progress", [0.0, 0.4, 1.0])
@pytest.mark.parametrize(("channels", "prototypes"), [(6, 1), (6, 2), (7, 3), (8, 5), (5, 5), (1, 1)])
def test_group_follows_the_formula(channels: int, prototypes: int, progress: float, mapping: str) -> None:
    acts = [a.double() for a in group(3, channels, prototypes, progress, mapping=mapping, sharpness=1.7)]
    inputs = [torch.randn(2, channels, 3, 2, dtype=torch.float64, requires_grad=True) for _ in acts]
    hard = math.ceil(round(channels * progress, 6))
    got = torch.stack([act(x) for act, x in zip(acts, inputs, strict=True)])
    expected = torch.stack([naive(act, x, inputs[0], hard, 1.7) for act, x in zip(acts, inputs, strict=True)])
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-14)
    wanted = (*inputs, *parameters(acts))
    for ours, theirs in zip(gradients(got, *wanted), gradients(expected, *wanted), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)


@pytest.mark.parametrize("progress", [0.0, 0.5])
def test_gradients_agree_with_finite_differences_through_the_cell(progress: float) -> None:
    leader, follower = (a.double() for a in group(2, 5, 2, progress))

    def run(x: Tensor, z: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        return leader(x), follower(z)

    # Away from zero, where a hard gate jumps.
    x, z = ((torch.rand(2, 5, 2, 2, dtype=torch.float64) + 0.1) * torch.tensor([-1, 1]) for _ in range(2))
    values = (x.requires_grad_(), z.requires_grad_(), leader.alpha, leader.beta, follower.alpha, follower.beta)
    assert torch.autograd.gradcheck(run, values)


def test_hard_gates_pass_no_gradient_and_soft_gates_do() -> None:
    leader, follower = group(2, 4, 2)
    x, z = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    leader(x)
    follower(z).sum().backward()
    assert x.grad is None
    set_progress(nn.ModuleList([leader, follower]), 0)
    leader(x)
    follower(z).sum().backward()
    assert x.grad is not None
    assert x.grad[:, :2].abs().min() > 0  # the prototypes
    assert torch.equal(x.grad[:, 2:], torch.zeros(3, 2))  # the replicates of the leader have no say in a follower


def test_identity_is_relu_bit_for_bit() -> None:
    act = SharedReLU(6, 6)
    x = torch.cat([torch.randn(64, 6) * 10.0**exponent for exponent in (-40, -3, 0, 3, 37)])
    x.requires_grad_()
    assert torch.equal(act(x), F.relu(x))
    assert torch.equal(*(gradients(f(x), x)[0] for f in (act, F.relu)))


def test_gate_is_open_at_zero() -> None:
    act = SharedReLU(2, 1)
    for zero in (0.0, -0.0):
        x = torch.tensor([[zero, 3.0]], requires_grad=True)
        assert act(x).tolist() == [[0.0, 3.0]]
        assert gradients(act(x), x)[0].tolist() == [[-1.0, 1.0]]  # ReLU's would be 0 at zero
    assert act(torch.tensor([[-1e-45, 3.0]])).tolist() == [[0.0, 0.0]]


def test_maps_from_channels_to_prototypes() -> None:
    assert prototype_of(8, 3, "round-robin").tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert prototype_of(8, 3, "contiguous").tolist() == [0, 1, 2, 0, 0, 1, 1, 2]
    assert prototype_of(4, 4, "contiguous").tolist() == [0, 1, 2, 3]


def test_a_soft_gate_is_gelu() -> None:
    act, x = SharedReLU(5, 5), torch.randn(7, 5, 2, 2)
    set_progress(act, 0)
    torch.testing.assert_close(act(x), F.gelu(x))
    set_sharpness(act, 4.0)
    torch.testing.assert_close(act(x), F.gelu(4 * x) / 4)


@pytest.mark.parametrize(
    ("channels", "progress", "hard"),
    [
        (64, 0.0, 0),
        (64, 1.0, 64),
        (64, 1 / 150, 1),  # 0.43
        (64, 3 / 150, 2),  # 1.28
        (100, 3 / 150, 2),  # exactly 2, while 100 * 0.07 below is 7.000000000000001 in floats
        (100, 0.07, 7),
        (100, 0.29, 29),  # 28.999999999999996 in floats
        (150, 3 * (1 / 150), 3),
        (512, 149 / 150, 509),  # 508.59
        (3, 0.34, 2),  # 1.02
        (3, 1e-3, 1),
    ],
)
def test_switch_by_hand(channels: int, progress: float, hard: int) -> None:
    act = SharedReLU(channels, 1)
    act.set_progress(progress)
    assert act.hard_channels == hard
    assert hard_share(nn.Sequential(act)) == hard / channels
    x = torch.full((1, channels), 0.5)
    assert (act(x)[0] == 0.5).tolist() == [False] * (channels - hard) + [True] * hard


def test_every_step_of_every_switch_is_the_exact_ceiling() -> None:
    for channels, steps in itertools.product([1, 13, 64, 96, 1280], [1, 3, 7, 100, 150]):
        act = SharedReLU(channels, 1)
        for step in range(steps + 1):
            act.set_progress(step / steps)
            assert act.hard_channels == -(-channels * step // steps)


def test_sites_switch_independently_of_their_leader() -> None:
    acts = [a.double() for a in group(3, 4, 2)]
    inputs = [torch.randn(2, 4, dtype=torch.float64) for _ in acts]
    for progresses in itertools.product([0.0, 0.5, 1.0], repeat=3):
        for act, progress in zip(acts, progresses, strict=True):
            act.set_progress(progress)
        for act, z, progress in zip(acts, inputs, progresses, strict=True):
            torch.testing.assert_close(act(z), naive(act, z, inputs[0], int(4 * progress)), rtol=0, atol=1e-14)


@pytest.mark.parametrize("progress", [-0.1, 1.01, math.nan])
def test_progress_outside_the_switch_is_refused_before_anything_changes(progress: float) -> None:
    act = SharedReLU(4, 2)
    act.set_progress(0.5)
    with pytest.raises(DeepShareError, match="between 0"):
        act.set_progress(progress)
    assert act.hard_channels == 2


def test_only_alpha_and_beta_are_saved() -> None:
    assert list(SharedReLU(4, 2).state_dict()) == ["alpha", "beta"]
    plain = SharedReLU(4, 2, affine=False)
    assert not plain.state_dict() and not list(plain.parameters())
    x = torch.randn(3, 4)
    assert torch.equal(plain(x), SharedReLU(4, 2)(x))


def test_start_values() -> None:
    act = SharedReLU(1000, 2)
    assert act.alpha.eq(1).all() and act.beta.eq(0).all()
    act.start_uniform(torch.Generator().manual_seed(1))
    first = act.alpha.detach().clone(), act.beta.detach().clone()
    act.start_uniform(torch.Generator().manual_seed(1))
    assert torch.equal(act.alpha, first[0]) and torch.equal(act.beta, first[1])
    assert not torch.equal(*first)
    for value in first:
        assert -1 <= value.min() < -0.98 and 0.98 < value.max() < 1 and abs(value.mean()) < 0.1


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_features_are_maps_of_one_position(progress: float) -> None:
    (act,) = group(1, 7, 3, progress)
    x = torch.randn(3, 7)
    torch.testing.assert_close(act(x), act(x[..., None, None]).view(3, 7))


@pytest.mark.parametrize("shape", [(7,), (7, 4, 4), (7, 7, 4), (3, 6, 4, 4), (3, 6), (2, 7, 2, 3, 4)])
def test_an_input_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"site of 7 channels got an input of shape"):
        SharedReLU(7, 3)(torch.zeros(shape))


@pytest.mark.parametrize("prototypes", [0, 5, -1])
def test_prototypes_are_some_of_the_channels(prototypes: int) -> None:
    with pytest.raises(UnsupportedModelError, match="of 4 channels"):
        SharedReLU(4, prototypes)


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("batch", [0, 1, 5])
def test_slices_of_the_batch_add_up(monkeypatch: pytest.MonkeyPatch, batch: int, progress: float) -> None:
    acts = [act.double() for act in group(2, 7, 3, progress)]
    inputs = [torch.randn(batch, 7, 4, 4, dtype=torch.float64, requires_grad=True) for _ in acts]
    results = []
    for samples in (batch, 2, 1):
        monkeypatch.setattr(activation, "_SLICE", math.ceil(samples * 7 * 4 * 4 / torch.get_num_threads()))
        y = torch.stack([act(x) for act, x in zip(acts, inputs, strict=True)])
        results.append([y, *gradients(y, *inputs, *parameters(acts))])
    for whole, *cut in zip(*results, strict=True):
        for sliced in cut:
            torch.testing.assert_close(sliced, whole, rtol=0, atol=1e-14)


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_channels_last_stays(progress: float) -> None:
    acts = group(2, 7, 3, progress)
    x, z = torch.randn(2, 7, 4, 5), torch.randn(2, 7, 4, 5)
    results = []
    for form in (torch.contiguous_format, torch.channels_last):
        inputs = [v.contiguous(memory_format=form).requires_grad_() for v in (x, z)]
        outputs = [act(v) for act, v in zip(acts, inputs, strict=True)]
        assert all(v.is_contiguous(memory_format=form) for v in outputs)
        grads = gradients(outputs[0] + outputs[1], *inputs, *parameters(acts))
        results.append([*outputs, *grads])
    for plain, last in zip(*results, strict=True):
        torch.testing.assert_close(plain, last)


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16(autocast: bool, progress: float) -> None:
    acts = group(2, 6, 4, progress)
    inputs = [torch.randn(512, 6, 4, 4).bfloat16() for _ in acts]
    exact = torch.stack([act(x.float()) for act, x in zip(acts, inputs, strict=True)])
    expected = torch.autograd.grad(exact.sum(), parameters(acts))
    acts = acts if autocast else [act.bfloat16() for act in acts]
    with torch.autocast("cpu", enabled=autocast):
        outputs = [act(x) for act, x in zip(acts, inputs, strict=True)]
    assert all(y.dtype == torch.bfloat16 for y in outputs)
    got = torch.autograd.grad(torch.stack(outputs).float().sum(), parameters(acts))
    assert {g.dtype for g in got} == {torch.float32 if autocast else torch.bfloat16}
    # A sum of 8,192 terms kept in bfloat16 would be off by more than its terms.
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours.float(), theirs, rtol=0.02, atol=1.0)


def test_leader_and_follower_of_unequal_precision() -> None:
    acts = group(2, 4, 2, progress=0)
    x, z = torch.randn(2, 4, requires_grad=True), torch.randn(2, 4)
    acts[0](x.bfloat16())
    y = acts[1](z)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad is not None and x.grad[:, :2].abs().min() > 0


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("channels_last", [False, True])
def test_overwriting_the_input(channels_last: bool, progress: float) -> None:
    plain, inner = group(2, 6, 4, progress), group(2, 6, 4, progress)
    inplace = [Overwrite(site) for site in inner]
    form = torch.channels_last if channels_last else torch.contiguous_format
    leaf = torch.randn(2, 6, 3, 3).contiguous(memory_format=form).requires_grad_()
    u, v = leaf * 2, leaf * 3
    expected = plain[0](leaf * 2) * plain[1](leaf * 3)
    assert inplace[0](u) is u and inplace[1](v) is v
    assert u.is_contiguous(memory_format=form)
    assert torch.equal(u * v, expected)
    for ours, theirs in zip(
        gradients(u * v, leaf, *parameters(inner)), gradients(expected, leaf, *parameters(plain)), strict=True
    ):
        assert torch.equal(ours, theirs)
    with torch.no_grad():
        w = leaf * 2
        assert inplace[0](w) is w and torch.equal(w, plain[0](leaf * 2))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gates_are_spread_in_the_layout_of_the_input(layout: torch.memory_format) -> None:
    # The products with x take half as long again where the two differ.
    x, gates = (torch.randn(2, channels, 3, 4).contiguous(memory_format=layout) for channels in (6, 2))
    assert activation._spread(gates, torch.arange(6) % 2, x).stride() == x.stride()
