"""Exported networks at work."""

from pathlib import Path

import pytest
import torch
from torch import Tensor


def onnx_logits(path: Path, images: Tensor) -> Tensor:
    """The logits of an ONNX file; without its runtime the test is skipped."""
    runtime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    (logits,) = runtime.InferenceSession(path).run(None, {"images": images.numpy()})
    return torch.from_numpy(logits)
