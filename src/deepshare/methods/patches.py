"""PatchReLU, an activation with one gate for each patch of a channel: y = x [mean of the patch > 0]."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare.sharing.form import NeuronActivation, NeuronForm
from deepshare.sharing.gates import GateModule, spread
from deepshare.sharing.sites import Site

Patch = tuple[int, int]  # height and width
LINEAR: Patch = (0, 0)  # no gate at all: the channel is left as it is


def patch_gate(x: Tensor, patch: Patch) -> Tensor:
    """Compare the mean of each patch with zero; patches at the edge may be smaller."""
    return (x if patch == (1, 1) else F.avg_pool2d(x, patch, ceil_mode=True)) > 0


def patch_cost(site: Site, patch: Patch) -> int:
    """Gates of one channel."""
    return 0 if patch == LINEAR else -(-site.height // patch[0]) * -(-site.width // patch[1])


def patches_of(site: Site) -> list[Patch]:
    """Return the choices of a channel: no gate, or patches with sides of powers of two, at most twice as long as wide.

    >>> patches_of(Site("act", 1, 4, 4, "module"))
    [(0, 0), (1, 1), (1, 2), (2, 1), (2, 2), (2, 4), (4, 2), (4, 4)]
    """
    tall, wide = (sorted({*(2**n for n in range(side.bit_length())), side}) for side in (site.height, site.width))
    shapes = [(h, w) for h in tall for w in wide if h <= 2 * w and w <= 2 * h]
    whole = (site.height, site.width)
    return [LINEAR, *shapes] if whole in shapes else [LINEAR, *shapes, whole]


class PatchReLU(GateModule, NeuronActivation):
    """Activation whose channels have their own patches; no gradient flows through a gate.

    Attributes:
        patches: Height and width of the patch of each channel, (C, 2); `set_patches` changes them.
    """

    patches: Tensor
    order: Tensor
    back: Tensor

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site
        self.register_buffer("patches", torch.ones(site.channels, 2, dtype=torch.long))
        for name in ("order", "back"):
            self.register_buffer(name, torch.arange(site.channels), persistent=False)
        self._sort()

    @property
    def gates(self) -> int:
        """Comparisons for one image."""
        return sum(count * patch_cost(self.site, patch) for patch, count in self.runs)

    @torch.no_grad()
    def set_patches(self, patches: Tensor) -> None:
        """Set the patch of each channel, (C, 2)."""
        self.patches.copy_(patches)
        self._sort()

    def _sort(self) -> None:
        """Bring channels with the same patch together."""
        found, which = self.patches.unique(dim=0, return_inverse=True)
        counts = which.bincount(minlength=len(found)).tolist()
        shapes: list[list[int]] = found.tolist()
        self.runs = [((height, width), count) for (height, width), count in zip(shapes, counts, strict=True)]
        self.order = which.argsort(stable=True)
        self.back = self.order.argsort()

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by the gates."""
        maps = x.reshape(x.shape[0], *self.site.shape)
        with torch.no_grad():
            gates = torch.cat(list(self._gates(maps.index_select(1, self.order))), 1).index_select(1, self.back)
        return (maps * gates).reshape(x.shape)

    def form(self) -> NeuronForm:
        """Channels without a gate pass."""
        gated = (self.patches > 0).all(1)
        return NeuronForm(mask=gated.view(-1, 1, 1), patches=self.patches[gated])

    def _gates(self, x: Tensor) -> Iterator[Tensor]:
        for part, (patch, _) in zip(x.split([count for _, count in self.runs], 1), self.runs, strict=True):
            if patch == LINEAR:
                yield torch.ones_like(part, dtype=torch.bool)
            else:
                yield spread(patch_gate(part, patch), patch, self.site.height, self.site.width)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._sort()

    def extra_repr(self) -> str:
        """Description of this site in print(model)."""
        return f"{'x'.join(map(str, self.site.shape))}, gates={self.gates}"


def patched(model: nn.Module) -> list[PatchReLU]:
    """Return all such sites of a network, in the order of modules."""
    return [module for module in model.modules() if isinstance(module, PatchReLU)]
