"""Sites of networks that take no memory."""

from typing import Any

import torch
from torch import nn

from deepshare import zoo
from deepshare.sharing.sites import Sites, find_sites


def build(name: str, **arguments: Any) -> nn.Module:
    with torch.device("meta"):
        return zoo.build(name, **arguments)


def sites_of(name: str, size: int, **arguments: int) -> Sites:
    return find_sites(build(name, **arguments), (3, size, size))
