"""Squares beside shared gates: the formula, how ReLUs fade, and the network that comes of it everywhere else."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare.methods.deepshare import DeepShare
from deepshare.methods.square import CurvedReLU, curve, curved_relus
from deepshare.private.api import check_plan
from deepshare.private.cost import predict
from deepshare.private.ir.trace import translate
from deepshare.private.runtime.outcome import Part
from deepshare.sharing.convert import count_gates, share, site_gates
from deepshare.sharing.gates import SharedReLU, by_site, fading, shared_relus
from deepshare.sharing.onnx import export_onnx
from deepshare.sharing.planning import plan
from deepshare.training.shared_models import plan_of, unshared
from tests.sharing.exported import onnx_logits

SIZE = (1, 4, 4)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    first, second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def curved(model: nn.Module) -> nn.Module:
    """With numbers as training may leave them."""
    shared = share(model, plan(model, SIZE, 32), start="uniform", generator=torch.Generator().manual_seed(1))
    curve(shared)
    for number, site in enumerate(curved_relus(shared)):
        nn.init.uniform_(site.curve.square, -3, 3, generator=torch.Generator().manual_seed(number))
    return shared.eval()


def test_the_formula_by_hand() -> None:
    site = CurvedReLU(SharedReLU(2, 1))
    with torch.no_grad():
        site.activation.alpha.copy_(torch.tensor([1.0, 3.0]))
        site.activation.beta.copy_(torch.tensor([0.0, -1.0]))
        site.curve.square.copy_(torch.tensor([20.0, 5.0]))
    x = torch.tensor([[2.0, -3.0], [-2.0, 4.0]])
    # 2 + 2 4 and -3 (3 - 1) + 0.5 9; the gate is shut: 0 + 2 4 and 4 (-1) + 0.5 16
    expected = torch.tensor([[10.0, -1.5], [8.0, 4.0]])
    torch.testing.assert_close(site(x), expected)
    maps = x[:, :, None, None].expand(2, 2, 3, 3).contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(site(maps), expected[:, :, None, None].expand(2, 2, 3, 3))
    site.own = 0.25
    torch.testing.assert_close(site(x), 0.75 * expected + 0.25 * F.relu(x))


def test_gradients_reach_everything() -> None:
    site = CurvedReLU(SharedReLU(3, 2)).double()
    site.activation.set_progress(0.0)
    nn.init.uniform_(site.curve.square, -1, 1)
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    values = tuple(site.parameters())
    assert torch.autograd.gradcheck(lambda *inputs: site(inputs[0]), (x, *values))


def test_it_starts_as_the_shared_network_and_a_relu_fades_until_it_is_gone() -> None:
    model = network()
    made = DeepShare(plan(model, SIZE, 32), square=True, fade=4)
    shared, x = made.convert(model), torch.randn(2, *SIZE)
    torch.testing.assert_close(shared(x), share(model, made.plan)(x))
    seen = []
    for phase, epoch in [*(("gelu", epoch) for epoch in range(5)), ("switch", 0), ("finetune", 0)]:
        made.on_epoch_start(shared, phase, epoch, 5)
        seen.append(made.measures(shared)["own_relu"])
    assert seen == [0.5625, 0.25, 0.0625, 0.0, 0.0, 0.0, 0.0]
    made = replace(made, fade=2, fade_in="finetune")
    for epoch, own in enumerate((0.25, 0.0)):
        made.on_epoch_start(shared, "finetune", epoch, 2)
        assert made.measures(shared) == {"hard_share": 1.0, "own_relu": own}
    curve(shared)
    assert len(list(curved_relus(shared))) == 2  # none is curved twice


def test_squares_are_no_gates_and_go_into_every_form_of_the_network(tmp_path: Path) -> None:
    model, images = network(), torch.randn(5, *SIZE)
    made, shared = plan(model, SIZE, 32), curved(model)
    assert count_gates(shared, SIZE) == 32
    with torch.no_grad():
        logits = shared(images)
    assert not torch.allclose(logits, share(model, made).eval()(images), atol=0.1)
    program = translate(shared, SIZE)
    check_plan(program, made)
    assert sum(operation.comparisons for operation in program.operations) == 32
    torch.testing.assert_close(program.evaluate(images).float(), logits)
    export_onnx(shared, tmp_path / "network.onnx", SIZE)
    torch.testing.assert_close(onnx_logits(tmp_path / "network.onnx", images), logits, atol=1e-5, rtol=1e-4)


def test_it_costs_bytes_and_no_comparison() -> None:
    model = network()
    without, squares = (predict(m, SIZE, "crypten") for m in (share(model, plan(model, SIZE, 32)), curved(model)))
    assert [layer for layer in squares.layers if layer.name.endswith(".activation")] == [
        replace(layer, name=f"{layer.name}.activation") for layer in without.layers if layer.name in ("1", "3")
    ]
    curves = [layer for layer in squares.layers if layer.name.endswith(".curve")]
    assert [layer.part.rounds for layer in curves] == [2, 2]  # x x, and a hidden number times that


@pytest.mark.linux
def test_with_gateshare_squares_are_on_their_way_while_gates_are() -> None:
    model = network()
    without, squares = (predict(m, SIZE, "gateshare") for m in (share(model, plan(model, SIZE, 32)), curved(model)))
    curves = [layer.part for layer in squares.layers if layer.name.endswith(".curve")]
    neurons = [site.neurons for site in plan(model, SIZE, 32).sites]
    assert curves == [Part(server_bytes=8 * n, client_bytes=8 * n, products=n) for n in neurons]
    assert squares.online.rounds == without.online.rounds == 3


class InPlace(nn.Module):
    """Its ReLU writes over what is read again, and is called what we call what is within a module."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.activation = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        self.activation(y)
        return y


def test_names_of_sites_do_not_depend_on_what_stands_there() -> None:
    model = InPlace()
    made = plan(model, SIZE, 16)
    for shared in (share(model, made), curved_in_place(model)):
        assert [name for name, module in by_site(shared) if isinstance(module, SharedReLU)] == ["activation"]
        assert [site.name for site in plan_of(shared, SIZE).sites] == ["activation"]
        x = torch.randn(2, *SIZE)
        torch.testing.assert_close(unshared(shared)(x), model(x))


def curved_in_place(model: nn.Module) -> nn.Module:
    shared = share(model, plan(model, SIZE, 16))
    curve(shared)
    return shared


def test_gates_are_counted_at_the_site_and_not_at_what_is_within_it() -> None:
    model = network()
    made = plan(model, SIZE, 32)
    leaders = {group.sites[0].name: group.gates for group in made.groups}
    assert site_gates(share(model, made), SIZE) == site_gates(curved(model), SIZE) == leaders
    assert site_gates(curved_in_place(InPlace()), SIZE) == {"activation": 16}
    assert site_gates(model, SIZE) == {"1": 64, "3": 64}


def test_a_relu_fades_into_shared_gates_as_it_does_into_squares() -> None:
    model, x = network(), torch.randn(2, *SIZE)
    made = DeepShare(plan(model, SIZE, 32), fade=4)
    shared = made.convert(model)
    assert list(shared.state_dict()) == list(share(model, made.plan).state_dict())  # no key of its own
    made.on_epoch_start(shared, "gelu", 0, 5)
    site = next(shared_relus(shared))
    assert made.measures(shared)["own_relu"] == site.own == 0.5625
    maps = torch.randn(2, 4, 4, 4)
    with torch.no_grad():
        faded = site(maps)
        site.own = 0.0
        torch.testing.assert_close(faded, torch.lerp(site(maps), F.relu(maps), 0.5625))
    made.on_epoch_start(shared, "finetune", 0, 1)
    assert torch.equal(shared(x), share(model, made.plan)(x))
    assert [type(site) for _, site in fading(curved(model))] == [CurvedReLU] * 2  # and not the gates within


def test_alpha_and_beta_may_be_spared_weight_decay() -> None:
    model = network()
    made = DeepShare(plan(model, SIZE, 32), decay_affine=False)
    shared = made.convert(model)
    optimiser = made.optimiser(shared, lr=0.1, momentum=0.9, weight_decay=0.5)
    decays = {id(value): group["weight_decay"] for group in optimiser.param_groups for value in group["params"]}
    found = {name: decays[id(value)] for name, value in shared.named_parameters()}
    assert len(decays) == len(found)
    assert {name for name, decay in found.items() if decay == 0} == {"1.alpha", "1.beta", "3.alpha", "3.beta"}
    assert {decay for name, decay in found.items() if name.endswith(("weight", "bias"))} == {0.5}
    (whole,) = replace(made, decay_affine=True).optimiser(shared, lr=0.1, momentum=0.9, weight_decay=0.5).param_groups
    assert whole["params"] == list(shared.parameters())
