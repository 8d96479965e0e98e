"""Blocks whose ReLUs are functions go all the way, whatever else their forward does."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from deepshare import count_gates, find_sites, plan, share
from deepshare.errors import UnsupportedModelError
from deepshare.private.ir.trace import translate
from deepshare.sharing.piecewise import rewritten
from tests.sharing.forwards import (
    ATTRIBUTES,
    FORWARDS,
    Asserts,
    Attribute,
    Base,
    Buffers,
    Constants,
    Dropped,
    Flagged,
    FusedWeights,
)

SIZE = (3, 8, 8)


def shared(model: nn.Module) -> nn.Module:
    return share(model, plan(model, SIZE, "100%", layer_sharing=False))


@pytest.mark.parametrize("build", FORWARDS)
def test_forwards_are_shared_and_translated(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, images = build().eval(), torch.randn(2, *SIZE)
    same, expected = shared(model), model(images)
    assert set(same.state_dict()) >= set(model.state_dict()) and not vars(model).keys() & {"_tensor_constant0"}
    for twin in (same, copy.deepcopy(same), pickle.loads(pickle.dumps(same))):
        assert torch.equal(twin(images), expected)
    assert count_gates(same, SIZE) == find_sites(model, SIZE).neurons
    half = share(model, plan(model, SIZE, "50%"))
    program = translate(half, SIZE)
    torch.testing.assert_close(program.evaluate(images.double()).float(), half(images), rtol=0, atol=1e-5)
    torch._dynamo.reset()  # all generated forwards have one code object, whose compilations are counted
    compiled: Callable[[Tensor], Tensor] = torch.compile(same, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), expected)


def test_dropout_follows_the_mode_of_its_block() -> None:
    torch.manual_seed(0)
    images, same = torch.randn(4, *SIZE), shared(Dropped())
    assert not torch.equal(same.train()(images), same(images))
    assert torch.equal(same.eval()(images), same(images))


def test_what_is_computed_of_buffers_follows_loaded_weights() -> None:
    torch.manual_seed(0)
    model, images = Buffers().eval(), torch.randn(2, *SIZE)
    same = shared(model)
    weights = model.state_dict() | {"var": torch.full((8,), 4.0), "mean": torch.rand(8)}
    model.load_state_dict(weights)
    same.load_state_dict(weights, strict=False)
    assert torch.equal(same(images), model(images))


def test_other_flags_and_failing_assertions_are_refused_at_run_time() -> None:
    same, images = shared(Flagged()), torch.randn(2, *SIZE)
    assert torch.equal(same(images, features=False, times=2), same(images))
    for others in ({"features": True}, {"times": 1}, {"how": "sum"}):
        with pytest.raises(UnsupportedModelError, match="None, lists or flags in other places"):
            same(images, **others)
    with pytest.raises(AssertionError, match="assertion of the forward"):
        shared(Asserts())(torch.randn(2, 3, 8, 9))


def test_a_choice_by_sizes_is_refused() -> None:
    class Chooses(Constants):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if x.shape[2] > 4 else -x)

    with pytest.raises(UnsupportedModelError, match="cannot be traced"):
        shared(Chooses().eval())


def test_a_relu_of_parameters_is_no_site() -> None:
    model = FusedWeights()
    assert [site.shape for site in find_sites(model, SIZE)] == [(8, 8, 8)]
    model.weights.data += 1
    assert translate(shared(model), SIZE).comparisons == 512


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_activations_that_are_attributes_become_relus(kind: str) -> None:
    torch.manual_seed(0)
    model, images = Attribute(ATTRIBUTES[kind]).eval(), torch.randn(2, *SIZE)
    made = rewritten(model, smooth_to_relu=True, piecewise_to_relu=True)
    assert len(find_sites(made, SIZE)) == (4 if kind == "lambda" else 2)
    if kind == "leaky_relu":
        torch.testing.assert_close(made(images), model(images))
    translate(shared(made), SIZE)


def halved(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 2)


def halved_again(x: Tensor) -> Tensor:
    return halved(x)


class Method(Base):
    """The activation and the pool are in another method."""

    def down(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.silu(x), 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.down(self.conv(x)))


class Inherited(Method):
    """It calls the method of its parent."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 1)


class Helpers(Base):
    """A function that calls a function."""

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(halved_again(F.silu(self.conv(x))))


class Generator(Base):
    """Pools of several sizes in a generator."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.conv(x))
        return self.scores(sum((F.max_pool2d(x, k, 1, k // 2) for k in (3, 5)), x))


class Hidden(Base):
    """A function that no code names."""

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(getattr(F, "max_pool" + "2d")(getattr(F, "si" + "lu")(self.conv(x)), 2))


@pytest.mark.parametrize(("kind", "pools"), [(Method, 1), (Inherited, 1), (Helpers, 1), (Generator, 2)])
def test_functions_in_methods_helpers_and_generators_are_rewritten(kind: type[nn.Module], pools: int) -> None:
    torch.manual_seed(0)
    model, images = kind().eval(), torch.randn(2, *SIZE)
    exact = rewritten(model, maxpool="exact")
    torch.testing.assert_close(exact(images), model(images))
    assert {site.compares for site in find_sites(exact, SIZE)} == {"pool"}
    made = rewritten(model, smooth_to_relu=True, maxpool="avg")
    assert len(find_sites(made, SIZE)) == 1 and not find_sites(made, SIZE).others
    assert sum(isinstance(module, nn.AvgPool2d) for module in made.modules()) == pools


def test_networks_of_torch_fx_are_rewritten() -> None:
    model, images = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Hardswish(), nn.MaxPool2d(2)).eval(), torch.randn(2, *SIZE)
    traced = fx.symbolic_trace(model)
    made = rewritten(traced, piecewise_to_relu=True, maxpool="exact")
    torch.testing.assert_close(made(images), model(images))
    assert {site.compares for site in find_sites(made, SIZE)} == {"bound", "pool"}
    assert not find_sites(rewritten(traced, smooth_to_relu=True, maxpool="avg"), SIZE).others


def test_what_is_left_of_a_request_is_refused_by_name() -> None:
    for made, what in (
        (rewritten(Hidden(), smooth_to_relu=True), "silu"),
        (rewritten(Hidden(), maxpool="avg"), "max_pool2d"),
    ):
        with pytest.raises(UnsupportedModelError, match=f"Hidden: it still calls {what} after --"):
            find_sites(made, SIZE)
