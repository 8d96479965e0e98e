"""Pretrained weights of torchvision's MobileNetV2 for the backbone of DeepLabV3."""

from collections.abc import Iterator, Mapping

from torch import Tensor

from deepshare.errors import CheckpointError
from deepshare.zoo.deeplab import STAGES, ConvNorm, DeepLabV3

COUNTER = "num_batches_tracked"  # unused here, and missing in old files


def is_torchvisions(tensors: Mapping[str, Tensor]) -> bool:
    """Return True if the keys are those of torchvision's MobileNetV2."""
    return {"features.0.0.weight", "features.1.conv.0.0.weight", "features.17.conv.3.weight"} <= tensors.keys()


def backbone_weights(model: DeepLabV3, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Select the backbone's weights from torchvision's MobileNetV2 and rename their keys.

    The last convolution and the classifier are dropped.

    Raises:
        CheckpointError: The weights have another width or are incomplete.
    """
    own = model.state_dict()
    names = {
        f"{ours}.{key}": f"{theirs}.{key}"
        for ours, theirs in _layers(model)
        for key in ("weight", "bias", "running_mean", "running_var", COUNTER)
        if f"{ours}.{key}" in own
    }
    found = {ours: tensors[theirs] for ours, theirs in names.items() if theirs in tensors}
    missing = [names[ours] for ours in names if ours not in found and not ours.endswith(COUNTER)]
    if missing:
        raise CheckpointError(f"a MobileNetV2 without {missing[0]}: give a complete state_dict")
    unequal = [ours for ours, tensor in found.items() if tensor.shape != own[ours].shape]
    if unequal:
        theirs, ours = tuple(found[unequal[0]].shape), tuple(own[unequal[0]].shape)
        raise CheckpointError(
            f"a MobileNetV2 of another width ({names[unequal[0]]} has shape {theirs}, here it is {ours}): "
            "change model.arguments.width, which is 1 for torchvision's files"
        )
    return found


def _layers(model: DeepLabV3) -> Iterator[tuple[str, str]]:
    """Paths of every convolution and BatchNorm of the backbone, here and in torchvision."""
    yield from (("conv1.conv", "features.0.0"), ("conv1.bn", "features.0.1"))
    blocks = (
        (f"layer{stage}.{place}", block)
        for stage in range(1, len(STAGES) + 1)
        for place, block in model.get_submodule(f"layer{stage}").named_children()
    )
    for number, (name, block) in enumerate(blocks, start=1):
        parts = ("expand", "dw") if isinstance(block.get_submodule("expand"), ConvNorm) else ("dw",)
        for index, part in enumerate(parts):
            yield f"{name}.{part}.conv", f"features.{number}.conv.{index}.0"
            yield f"{name}.{part}.bn", f"features.{number}.conv.{index}.1"
        yield f"{name}.project.conv", f"features.{number}.conv.{len(parts)}"
        yield f"{name}.project.bn", f"features.{number}.conv.{len(parts) + 1}"
