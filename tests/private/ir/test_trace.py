"""Whole networks as programs, what no engine knows, and what is no translation."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare import plan, share, zoo
from deepshare.errors import UnsupportedModelError
from deepshare.private.ir.program import Add, Convolution, SharedActivation
from deepshare.private.ir.trace import translate
from tests.private.ir.functions import Function, same, settled


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
