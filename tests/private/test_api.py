"""All parties on this machine, in real processes."""

from importlib.util import find_spec

import pytest
import torch
from torch import nn

from deepshare import plan, private, share, zoo
from deepshare.errors import EngineError, PlanMismatchError, UnsupportedModelError
from deepshare.private.api import check_plan, run
from deepshare.private.cost import predict
from deepshare.private.ir.trace import translate

crypten = pytest.mark.skipif(find_spec("crypten") is None, reason="engine crypten is not installed")
SIZE = (3, 16, 16)


def shared() -> nn.Module:
    torch.manual_seed(0)
    model = zoo.resnet18(width=4, num_classes=10)
    return share(model, plan(model, SIZE, "10%"), start="uniform").eval()


@crypten
def test_logits_cost_and_error() -> None:
    model, images = shared(), torch.randn(2, *SIZE)
    result = private.infer(model, images, engine="crypten")
    with torch.no_grad():
        expected = model(images)
    torch.testing.assert_close(result.logits.float(), expected, rtol=0, atol=1e-2)
    cost = result.cost
    assert cost.error == pytest.approx(float((result.logits - expected).abs().max()), abs=1e-5)
    assert cost.engine == "crypten" and cost.images == 2 and cost.seconds > 0
    predicted = predict(model, SIZE, "crypten", images=2)
    assert [layer.name for layer in predicted.layers] == [layer.name for layer in cost.layers]
    for ours, theirs in zip(predicted.layers, cost.layers, strict=True):
        assert vars(ours.part) | {"seconds": 0} == vars(theirs.part) | {"seconds": 0}, ours.name
    assert predicted.offline.dealer_bytes == cost.offline.dealer_bytes


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (torch.zeros(3, 16, 16), r"takes images \(N, C, H, W\): give the batch first"),
        (torch.zeros(16), r"give floats of shape \(N, C, H, W\), \(N, C, L\) or \(N, C\)"),
        (torch.zeros(1, 3, 16, 16, dtype=torch.uint8), "torch.uint8: give floats"),
        (torch.full((1, 3, 16, 16), torch.nan), "not finite"),
        (torch.zeros(0, 3, 16, 16), "give floats"),
    ],
)
@crypten
def test_images_that_are_none_are_refused(images: torch.Tensor, said: str) -> None:
    with pytest.raises((EngineError, UnsupportedModelError), match=said):
        private.infer(shared(), images)


def test_an_unknown_engine_an_unknown_option_and_an_unknown_layer() -> None:
    with pytest.raises(EngineError, match="no engine is named crypto: take one of crypten, gateshare, gateshare-2pc"):
        private.infer(shared(), torch.zeros(1, *SIZE), engine="crypto")
    with pytest.raises(UnsupportedModelError, match="1 calls sigmoid"):
        predict(nn.Sequential(nn.Conv2d(3, 2, 1), nn.Sigmoid()), SIZE, "crypten")


@crypten
def test_values_beyond_fixed_point_are_refused_with_the_layer() -> None:
    network = nn.Sequential(nn.Conv2d(3, 2, 1, bias=False), nn.Conv2d(2, 2, 1, bias=False))
    for layer in network:
        nn.init.constant_(layer.weight, 1000.0)  # type: ignore[arg-type]
    with pytest.raises(EngineError, match=r"1 reaches 6e\+06 on these images"):
        run(private.translate(network, SIZE), torch.ones(1, *SIZE), "crypten")


def test_another_plan_with_as_many_gates_is_refused() -> None:
    model = zoo.resnet18(width=4, num_classes=10)
    made, other = plan(model, SIZE, "50%"), plan(model, SIZE, "50%", layer_sharing=False)
    served = translate(share(model, made), SIZE)
    check_plan(served, made)
    with pytest.raises(PlanMismatchError, match=r"gates of layer1.* otherwise than the plan"):
        check_plan(served, other)
