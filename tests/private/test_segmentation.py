"""Private inference of a network for segmentation on a small crop of a real image."""

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn

import deepshare
from deepshare import private, zoo
from deepshare.data.images import IMAGENET_MEAN, IMAGENET_STD
from deepshare.data.pictures import decode_rgb
from deepshare.private.cost import Result
from deepshare.private.ir.program import Program, SharedActivation
from deepshare.private.ir.trace import translate
from tests.data.unpacked import Unpack

SIZE = (3, 32, 32)
crypten = pytest.mark.skipif(find_spec("crypten") is None, reason="engine crypten is not installed")


@pytest.fixture(scope="module")
def crops(real_data: Unpack) -> Tensor:
    """Sixteen crops of real frames, normalised."""
    frames = sorted((real_data("camvid-240x180") / "CamVid" / "test").iterdir())[::15]
    images = torch.stack([decode_rgb(frame)[:, 120:152, 100:132] for frame in frames])
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    return (images / 255 - mean) / std


def deeplab(crops: Tensor, *, shared: bool) -> nn.Module:
    """A narrow DeepLabV3 whose BatchNorms know the crops, with a tenth of its gates or with all of them."""
    network = zoo.deeplabv3_mobilenetv2(num_classes=11, aspp_width=8, width=0.25)
    plan = deepshare.plan(network, SIZE, "10%" if shared else "100%", layer_sharing=shared)
    model = deepshare.share(network, plan, start="uniform" if shared else "identity").train()
    with torch.no_grad():
        for _ in range(30):
            model(crops)
    return model.eval()


def margin(program: Program, crop: Tensor) -> float:
    """How far the number nearest to zero that decides a gate is from it: a flipped gate flips all that share it."""
    values: dict[int, Tensor] = {}
    program.evaluate(crop, see=values.__setitem__)
    leaders = [op for op in program.operations if isinstance(op, SharedActivation) and op.leads]
    return min(float(values[op.inputs[0]][:, : op.prototypes].abs().min()) for op in leaders)


def check(result: Result, expected: Tensor, error: float) -> None:
    assert result.logits.shape == expected.shape == (1, 11, 32, 32)
    assert float((result.logits - expected).abs().max()) < error < 0.1 * float(expected.abs().max())
    assert len(expected.argmax(1).unique()) > 1
    # Only where two classes are nearer to each other than the error may another one win.
    first, second = expected.topk(2, 1).values.unbind(1)
    apart = first - second > 2 * error
    assert float(apart.double().mean()) > 0.5
    assert bool((result.logits.argmax(1) == expected.argmax(1))[apart].all())


@crypten
def test_shared_gates_on_crypten(crops: Tensor) -> None:
    model = deeplab(crops, shared=True)
    program = translate(model, SIZE)
    crop = max(crops.split(1), key=lambda one: margin(program, one))
    result = private.infer(model, crop, engine="crypten")
    with torch.no_grad():
        expected = model(crop)
    check(result, expected, 1e-3)
    assert result.cost.online.comparisons == deepshare.count_gates(model, SIZE)


@pytest.mark.usefixtures("parties_are_threads")
def test_every_gate_of_its_own_on_gateshare(crops: Tensor) -> None:
    model = deeplab(crops, shared=False)
    result = private.infer(model, crops[:1], engine="gateshare")
    with torch.no_grad():
        expected = model(crops[:1])
    check(result, expected, 2.0**-5)  # of which the noise is 2^-6
    assert result.cost.online.comparisons == deepshare.count_gates(model, SIZE)
