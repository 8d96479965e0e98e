from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from deepshare import plan, share, zoo
from deepshare.errors import UnsupportedModelError
from deepshare.methods.gated_polynomial import GatedPolynomial
from deepshare.private.ir import outline
from deepshare.private.ir.program import Add, Convolution, GatedActivation, Program, Resample, Reshape, SharedActivation
from deepshare.private.ir.trace import translate
from deepshare.sharing.convert import replace_sites
from deepshare.sharing.form import NeuronActivation, NeuronForm
from deepshare.sharing.sites import find_sites


def settled(model: nn.Module) -> nn.Module:
    """Running statistics and affine weights that folding could get wrong."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            for tensor in (module.running_mean, module.running_var, module.weight.data, module.bias.data):
                assert tensor is not None
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return model.eval()


def same(model: nn.Module, size: tuple[int, ...]) -> Program:
    """The program, after comparing it with the network on images that translation has not seen."""
    program = translate(model, size)
    images = torch.randn(3, *size, dtype=torch.float64)
    with torch.no_grad():
        expected = model.double()(images)
    torch.testing.assert_close(program.evaluate(images), expected, rtol=0, atol=1e-9)
    return program


def test_a_shared_resnet_has_its_batchnorm_folded_and_the_gates_of_its_plan() -> None:
    torch.manual_seed(0)
    model = settled(zoo.resnet18(width=8))
    made = plan(model, (3, 32, 32), "5%")
    program = same(share(model, made, start="uniform"), (3, 32, 32))
    kinds = Counter(operation.kind for operation in program.operations)
    assert kinds["Convolution"] == 20 and kinds["Add"] == 8 and kinds["SharedActivation"] == 16
    assert program.comparisons == made.gates
    leaders = [op for op in program.operations if isinstance(op, SharedActivation) and op.leads]
    assert [op.comparisons for op in leaders] == [group.gates for group in made.groups]
    assert [op.name for op in leaders] == [group.leader.name for group in made.groups]


def test_relus_are_counted_one_by_one() -> None:
    program = same(settled(zoo.resnet18(width=4)), (3, 32, 32))
    assert program.comparisons == 491_520 * 4 // 64


def test_batchnorm_before_the_activation_of_a_sum_becomes_a_convolution_of_its_own() -> None:
    torch.manual_seed(0)
    model = settled(zoo.build("wrn22-8", widen=1))
    program = same(model, (3, 32, 32))
    alone = [
        op
        for op in program.operations
        if isinstance(op, Convolution) and op.groups > 1 and isinstance(program.operations[op.inputs[0]], Add)
    ]
    assert len(alone) == 9 and all(op.weight.shape[1:] == (1, 1, 1) for op in alone)


def test_deeplab_with_dilation_groups_and_upsampling() -> None:
    torch.manual_seed(0)
    model = settled(zoo.build("deeplabv3-mobilenetv2", num_classes=5, aspp_width=8))
    program = same(model, (3, 40, 56))
    assert {op.dilation for op in program.operations if isinstance(op, Convolution)} > {(1, 1), (12, 12)}
    assert program.operations[-1].shape == (5, 40, 56)


class Function(nn.Module):
    """A network of one function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


F = nn.functional


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.avg_pool2d(x, 3, 2, padding=1),
        lambda x: F.avg_pool2d(x, 3, 2, padding=1, count_include_pad=False),
        lambda x: F.avg_pool2d(x, (2, 3)),
        lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: F.interpolate(x, size=(13, 7), mode="bilinear", align_corners=False),
        lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=True),
        lambda x: F.interpolate(x, scale_factor=(2.5, 1.3), mode="nearest"),
        lambda x: F.interpolate(x, None, 2, "nearest"),
        lambda x: x.mean([2, 3]),
    ],
)
def test_every_way_of_resampling_is_two_matrices(function: Callable[[Tensor], Tensor]) -> None:
    program = same(Function(function), (2, 8, 9))
    assert {type(op) for op in program.operations[1:]} <= {Resample, Reshape}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cat([x, F.relu(x), x], 1),
        lambda x: x.flatten(1),
        lambda x: x.view(x.size(0), -1),
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.dropout(x + x, training=False),
        lambda x: x.clone().add_(x).relu_() + x,
        lambda x: x.permute(0, 2, 3, 1),
        lambda x: torch.permute(x, (0, -1, 1, 2)),
        lambda x: x.transpose(-1, 1).flatten(1),
        lambda x: torch.cat([x, x], 1).view(-1, 2, 2, 8, 9).swapaxes(1, 2).contiguous().view(-1, 4, 8, 9),
    ],
)
def test_other_functions(function: Callable[[Tensor], Tensor]) -> None:
    same(Function(function), (2, 8, 9))


class Constants(nn.Module):
    """Layers and constants for functions of a network and its input."""

    def __init__(self, function: Callable[["Constants", Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.slopes = function, nn.PReLU(2)
        self.scale, self.one = nn.Parameter(torch.randn(2, 1, 1)), nn.Parameter(torch.tensor(0.3))
        self.register_buffer("places", torch.randn(1, 2, 8, 9))
        self.wider = nn.ConvTranspose2d(2, 4, 3, 2, 1, output_padding=1, groups=2, dilation=2)
        self.line, self.features = nn.Conv1d(2, 3, 3, 2, 1), nn.Linear(9, 5)
        self.matrix = nn.Parameter(torch.randn(80, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


MAP = 2 * 8 * 9


@pytest.mark.parametrize(
    ("function", "comparisons"),
    [
        (lambda m, x: x[:, :, ::2, 1:-1], 0),
        (lambda m, x: x[..., 0], 0),
        (lambda m, x: x[:, None], 0),
        (lambda m, x: x[:, [1, 0, 0]], 0),
        (lambda m, x: x.chunk(2, 1)[1] + x.split(1, dim=1)[0], 0),
        (lambda m, x: torch.cat(x.unbind(2)[:3], 2), 0),
        (lambda m, x: x.narrow(2, 1, 3).select(3, -1), 0),
        (lambda m, x: F.pad(x, (1, 2, -1, 1), value=2.5), 0),
        (lambda m, x: F.pad(x, (1, 2, 3, 1), mode="reflect"), 0),
        (lambda m, x: F.pad(x, (1, 2, 3, 1), mode="circular"), 0),
        (lambda m, x: F.pad(x, (0, 0, 0, 0, 1, 2)), 0),
        (lambda m, x: x.mean((2, 3), keepdim=True).expand(-1, -1, 4, 5), 0),
        (lambda m, x: x.repeat(1, 2, 1, 3), 0),
        (lambda m, x: x.roll(2, 3), 0),
        (lambda m, x: x.sum(1, keepdim=True), 0),
        (lambda m, x: torch.stack([x, -x], 1).sum(1), 0),
        (lambda m, x: torch.stack([x, -x], -1).flatten(1), 0),
        (lambda m, x: x.mean(1, keepdim=True) + x.mean((1, 2))[:, None, None], 0),
        (lambda m, x: x.mean(3), 0),
        (lambda m, x: x.sum((1, 3)) + x.flatten(1).sum(1, keepdim=True), 0),
        (lambda m, x: x.mean((2, 3)) * m.scale.flatten() + m.places[:, :, 0, 0], 0),
        (lambda m, x: (x @ m.features.weight.T).flatten(1) @ m.matrix, 0),
        (lambda m, x: torch.addmm(m.matrix[0], x[:, 0, 0, :1], m.matrix[:1], beta=2), 0),
        (lambda m, x: F.avg_pool1d(x.flatten(2), 5, 3, 1) + F.adaptive_avg_pool1d(x.flatten(2), 24), 0),
        (lambda m, x: F.avg_pool1d(x.flatten(2), 5, 4, ceil_mode=True, count_include_pad=False), 0),
        (lambda m, x: F.channel_shuffle(torch.cat([x, -x], 1), 2), 0),
        (lambda m, x: F.pixel_shuffle(torch.cat([x, -x], 1), 2), 0),
        (lambda m, x: F.pixel_unshuffle(x[:, :, :, 1:], 2), 0),
        (lambda m, x: x * m.scale + m.places, 0),
        (lambda m, x: m.places * x - 3, 0),
        (lambda m, x: m.one - x / 3, 0),
        (lambda m, x: sum([x, 0 * x + 1]), 0),
        (lambda m, x: x + x.mean((2, 3), keepdim=True), 0),
        (lambda m, x: x.mean((2, 3), keepdim=True) * x, 0),
        (lambda m, x: x**2 + x.square(), 0),
        (lambda m, x: m.wider(x), 0),
        (lambda m, x: m.line(x.flatten(2)), 0),
        (lambda m, x: m.features(x), 0),
        (lambda m, x: F.relu6(4 * x), 2 * MAP),
        (lambda m, x: x.clamp(-0.3, 0.4), 2 * MAP),
        (lambda m, x: x.clamp(max=0.1), MAP),
        (lambda m, x: F.hardswish(3 * x), 2 * MAP),
        (lambda m, x: F.leaky_relu(x, 0.2) + m.slopes(x) + x.abs(), 3 * MAP),
        (lambda m, x: torch.max(x, -x) - torch.minimum(x, x / 2), 2 * MAP),
        (lambda m, x: F.max_pool2d(x, 3, 2, 0, 1, True), 192),
        (lambda m, x: F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-torch.inf), 3, 2), 208),
        (lambda m, x: F.max_pool2d(x, (2, 3), dilation=2), 76),
        (lambda m, x: F.max_pool2d(x, 3, 2, 1, dilation=2, ceil_mode=True), 192),
        (lambda m, x: F.max_pool1d(x.flatten(2), 3, 2, 1), 2 * 2 * 36),
        (lambda m, x: F.adaptive_max_pool2d(x, (4, 3)), 120),
        (lambda m, x: F.adaptive_max_pool2d(x, (3, 2)), 2 * (8 * 2 * 4 + 3 * 2 * 3)),
        (lambda m, x: x.max(1)[0] + x.min(dim=1, keepdim=True).values.flatten(1, 2), MAP),
        (lambda m, x: torch.maximum(x, m.scale) + torch.min(m.one, x), 2 * MAP),
        (lambda m, x: x.amax((2, 3)), 2 * (9 * (4 + 2 + 1) + 5 + 3 + 2 + 1)),
    ],
)
def test_functions_are_a_few_operations(function: Callable[[nn.Module, Tensor], Tensor], comparisons: int) -> None:
    torch.manual_seed(0)
    program = same(Constants(function), (2, 8, 9))
    assert program.comparisons == comparisons
    assert outline.dump(outline.parse(outline.dump(program))) == outline.dump(program)


def test_masks_and_polynomials_of_single_neurons() -> None:
    torch.manual_seed(0)
    base = settled(zoo.resnet18(width=4))
    sites = find_sites(base, (3, 32, 32))

    def activation(site: object) -> nn.Module:
        shape = site.shape  # type: ignore[attr-defined]
        coefficients = [torch.randn(shape[0], 1, 1) * scale for scale in (1e-4, 0.1, 0.1)]
        made = GatedPolynomial(shape, coefficients)
        made.set_mask(torch.rand(shape) < 0.1)
        return made

    model = replace_sites(base, sites, activation).eval()
    program = same(model, (3, 32, 32))
    masks = [op for op in program.operations if isinstance(op, GatedActivation)]
    gates = sum(module.gates for module in model.modules() if isinstance(module, GatedPolynomial))
    assert program.comparisons == gates and all(op.square is not None for op in masks)


class Halved(NeuronActivation):
    """ReLU of the first channel, half of the others: an activation that no file of the package knows."""

    ready = True

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([F.relu(x[:, :1]), x[:, 1:] / 2], 1)

    def unfinished(self) -> tuple[str, str] | None:
        return None if self.ready else ("it is not ready", "make it ready")

    def form(self) -> NeuronForm:
        zero, half = torch.zeros(1, 1, 1), torch.full((1, 1, 1), 0.5)
        return NeuronForm(mask=torch.tensor([True, False, False]).view(-1, 1, 1), factors=(zero, half, zero))


def test_an_activation_runs_by_the_form_that_it_offers() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), Halved(), nn.Flatten(), nn.Linear(3 * 6 * 7, 3), halved := Halved()
    ).eval()
    program = same(model, (2, 8, 9))
    assert [operation.kind for operation in program.operations].count("GatedActivation") == 2
    assert program.comparisons == 6 * 7 + 1
    halved.ready = False
    with pytest.raises(UnsupportedModelError, match="4: it is not ready: make it ready"):
        translate(model, (2, 8, 9))


def test_what_nobody_reads_is_left_out_but_leaders_stay() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(2, 4, 1), nn.Conv2d(2, 4, 1)
            self.act = nn.ReLU()
            self.other = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            first = self.act(self.one(x))
            return self.other(self.two(x)) + 0 * 0 if first is None else self.other(self.two(x))

    model = Net()
    shared = share(model, plan(model, (2, 4, 4), 16))
    program = translate(shared, (2, 4, 4))
    assert program.comparisons == 16
    assert len(translate(model, (2, 4, 4)).operations) == 3


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x.sigmoid(), "calls sigmoid, which private inference does not know"),
        (lambda x: F.silu(x), "calls silu.*--smooth-to-relu"),
        (lambda x: x / x, "a division by what depends on the image"),
        (lambda x: x[:1], "a slice across images"),
        (lambda x: F.pad(x, (1, 1), mode="constant", value=torch.inf), "not finite"),
        (lambda x: x.max(), "a maximum across images"),
        (lambda x: x.sum(), "a mean or a sum across images"),
        (lambda x: x.max(1)[1].double() + x[:, 0], "the place of a maximum is read"),
        (lambda x: x.flatten(2) @ x.flatten(2).mT, "several tensors that depend on the image"),
        (lambda x: 2 * F.log_softmax(x, 1), "calls log_softmax.*let a softmax of classes come last"),
        (lambda x: x**3, "a power other than the square"),
        (lambda x: x[:, None] + x, "different numbers of dimensions"),
        (lambda x: F.interpolate(x, size=4, mode="bicubic"), "interpolation bicubic"),
        (lambda x: x.mean(0), "a mean or a sum across images"),
        (lambda x: x.mean(3).mean(2), "a mean of means: take one mean over all their dimensions"),
        (lambda x: (x, x), "returns tuple"),
        (lambda x: x.reshape(-1), "a reshape across images"),
        (lambda x: x.transpose(0, 1), "a permutation across images"),
        (lambda x: F.conv2d(x, x), "several tensors that depend on the image"),
        (lambda x: F.dropout(x), "may draw random numbers"),
    ],
)
def test_what_no_engine_knows_is_refused_by_name(function: Callable[[Tensor], Tensor], said: str) -> None:
    with pytest.raises(UnsupportedModelError, match=said):
        translate(Function(function), (2, 8, 8))


def test_gates_that_are_not_hard_yet_are_refused() -> None:
    from deepshare.sharing.gates import set_progress

    model = zoo.resnet18(width=4)
    shared = share(model, plan(model, (3, 32, 32), "5%"))
    set_progress(shared, 0.5)
    with pytest.raises(UnsupportedModelError, match=r"act1: its gates are not all hard: finish the switch"):
        translate(shared, (3, 32, 32))


def test_a_program_that_computes_something_else_is_refused() -> None:
    def writes_into_a_view(x: Tensor) -> Tensor:
        y = x.clone()
        y.view(len(y), -1).relu_()
        return y

    with pytest.raises(UnsupportedModelError, match="write into views"):
        translate(Function(writes_into_a_view), (2, 4, 4))


def test_numbers_that_are_not_finite_are_named() -> None:
    model = nn.Conv2d(2, 2, 1)
    nn.init.constant_(model.weight, torch.nan)
    with pytest.raises(UnsupportedModelError, match="not finite on random images: look at its weights"):
        translate(model, (2, 4, 4))


def test_a_compiled_network_is_refused_in_one_line() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    for compiled in (torch.jit.script(model), torch.compile(model)):
        with pytest.raises(UnsupportedModelError, match="is already compiled: give the original module"):
            translate(compiled, (3, 8, 8))  # type: ignore[arg-type]
