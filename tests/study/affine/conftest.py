"""A network with shared gates."""

import pytest
import torch

import deepshare
from deepshare import zoo
from deepshare.study.affine.parameters import NetworkAffine, read

SIZE = (3, 16, 16)


@pytest.fixture
def network() -> NetworkAffine:
    plain = zoo.resnet18(num_classes=5, width=4, depth=10)
    plan = deepshare.plan(plain, SIZE, "20%")
    generator = torch.Generator().manual_seed(0)
    return read(deepshare.share(plain, plan, start="uniform", generator=generator), gates=plan.gates)
