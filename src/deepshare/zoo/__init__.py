"""Networks: those of the paper, and those of timm, torchvision and segmentation-models-pytorch by name."""

from deepshare.zoo.deeplab import deeplabv3_mobilenetv2
from deepshare.zoo.names import build, default_input_size, known_names
from deepshare.zoo.resnet import hybrenet, resnet18
from deepshare.zoo.wide_resnet import wide_resnet

__all__ = ["build", "deeplabv3_mobilenetv2", "default_input_size", "hybrenet", "known_names", "resnet18", "wide_resnet"]
