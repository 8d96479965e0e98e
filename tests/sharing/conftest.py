"""A network and its plan, for the tests of plans and of their files."""

import pytest
from torch import nn

import deepshare
from deepshare import Plan, zoo


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return zoo.resnet18(width=16)


@pytest.fixture(scope="module")
def plan(network: nn.Module) -> Plan:
    return deepshare.plan(network, (3, 32, 32), 6_000)
