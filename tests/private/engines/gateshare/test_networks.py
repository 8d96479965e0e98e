"""Networks of other libraries as they are, run by three parties: of each kind one."""

import pytest
import torch
from torch import nn

pytest.importorskip("torchvision", reason="torchvision is not installed")
pytest.importorskip("timm", reason="timm is not installed")
pytest.importorskip("segmentation_models_pytorch", reason="segmentation-models-pytorch is not installed")

from deepshare import relu6_to_relu, smooth_to_relu, zoo
from deepshare.private.api import run
from deepshare.private.cost import predict
from deepshare.private.engines.gateshare.fixedpoint import synthetic
from deepshare.private.ir.trace import translate

SIZE = (3, 32, 32)
NETWORKS = {
    "torchvision:shufflenet_v2_x0_5": "channel shuffle, splits",
    "torchvision:squeezenet1_1": "max-pooling with ceil, concatenation",
    "torchvision:googlenet": "branches, dense max-pooling",
    "torchvision:mobilenet_v3_small": "hard-swish, squeeze-and-excite with hard sigmoids",
    "torchvision:densenet121": "pre-activation, concatenation of everything",
    "torchvision:mnasnet0_5": "depthwise convolutions",
    "timm:regnety_002": "groups, squeeze-and-excite with sigmoids",
    "timm:ghostnet_100": "slices, clamps",
    "timm:dla46_c": "trees",
    "smp:Unet/resnet18": "a map of classes, interpolation",
}
QUICK = ("torchvision:shufflenet_v2_x0_5",)


@pytest.mark.usefixtures("parties_are_threads")
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS])
def test_a_network_runs_as_it_is(name: str) -> None:
    torch.manual_seed(0)
    arguments = {"classes": 5} if name.startswith("smp:") else {"num_classes": 10}
    model = smooth_to_relu(relu6_to_relu(zoo.build(name, **arguments)))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    with torch.no_grad():  # statistics as training leaves them, or numbers grow from block to block
        model.train()(torch.cat([synthetic(SIZE).float(), torch.randn(8, *SIZE)]))
    program, image = translate(model.eval(), SIZE), torch.randn(1, *SIZE)
    result, predicted = run(program, image, "gateshare"), predict(program, SIZE, "gateshare")
    expected = program.evaluate(image)
    assert float((result.logits - expected).abs().max()) <= 0.06 + 0.02 * float(expected.abs().max())
    for what in ("comparisons", "rounds", "server_bytes", "client_bytes"):
        assert getattr(result.cost.online, what) == getattr(predicted.online, what) > 0
