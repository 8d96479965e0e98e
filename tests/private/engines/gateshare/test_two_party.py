"""Engine gateshare-2pc between two processes, with products under encryption."""

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn

from deepshare import plan, private, share
from deepshare.private.cost import Result, predict
from deepshare.private.ir.trace import translate
from tests.private.engines.gateshare.trial import shared_resnet

pytestmark = pytest.mark.skipif(find_spec("spu") is None, reason="spu is not installed")


def check(model: nn.Module, images: Tensor) -> Result:
    """Run a network, and compare logits and costs."""
    size = tuple(images.shape[1:])
    result = private.infer(model, images, engine="gateshare-2pc")
    expected = translate(model, size).evaluate(images)
    assert torch.equal(result.logits.argmax(1), expected.argmax(1))
    assert float((result.logits - expected).abs().median()) <= 2.0**-6
    predicted = predict(model, size, "gateshare-2pc", images=len(images))
    for ours, theirs in zip(predicted.layers, result.cost.layers, strict=True):
        assert replace(theirs.part, seconds=0.0) == ours.part, ours.name
    offline, computed = result.cost.offline, predicted.offline
    assert offline.dealer_bytes == computed.dealer_bytes == 0
    assert offline.server_bytes == pytest.approx(computed.server_bytes, rel=0.1)
    assert offline.client_bytes == pytest.approx(computed.client_bytes, rel=0.1)
    return result


def test_a_small_network() -> None:
    torch.manual_seed(3)
    size = (2, 6, 6)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, groups=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 5),
    )
    result = check(share(model, plan(model, size, budget=36), start="uniform").eval(), torch.randn(2, *size))
    assert result.cost.online.comparisons == 2 * 36
    # Keys for encryption are made once, before any image.
    assert result.cost.session.server_bytes > 5_000_000


@pytest.mark.slow
def test_a_residual_network() -> None:
    torch.manual_seed(21)
    result = check(shared_resnet(8, 400, (3, 16, 16)), torch.randn(2, 3, 16, 16))
    assert result.cost.online.comparisons == 2 * 400
    assert result.cost.online.rounds == 17 + 2 * 4
