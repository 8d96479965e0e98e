"""GatedPolynomial, the last form of every method with gates for single neurons, and the choice of those neurons."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepshare.errors import UnsupportedModelError
from deepshare.sharing.activation import laid_out
from deepshare.sharing.form import NeuronActivation, NeuronForm
from deepshare.sharing.planning import check_weights, split_budget
from deepshare.sharing.sites import Site


class GatedPolynomial(NeuronActivation):
    """Activation y = ReLU(x) where the mask is true, and scale square x^2 + linear x + constant elsewhere.

    In training both are computed everywhere, which is fastest. In inference the neurons with a gate are gathered first,
    so that there are as many comparisons as gates, also in the exported network.

    Args:
        shape: (C, H, W) of the site; (C, 1, 1) for an input of shape (N, C).
        coefficients: square, linear and constant, each of a shape that broadcasts to (C, H, W), as parameters or as
            constant tensors; by default those of the identity: 0, 1 and 0.
        scale: Factor of the square, to make its steps in training smaller.

    Attributes:
        mask: True for neurons with a gate, (C, H, W); `set_mask` changes it.

    Example:
        >>> act = GatedPolynomial((1, 1, 3)).eval()
        >>> act.set_mask(torch.tensor([[[True, False, True]]]))
        >>> act(torch.tensor([-1.0, -2.0, 3.0]).view(1, 1, 1, 3)).flatten()
        tensor([ 0., -2.,  3.])
    """

    mask: Tensor
    square: Tensor
    linear: Tensor
    constant: Tensor
    index: Tensor

    def __init__(self, shape: Sequence[int], coefficients: Sequence[Tensor] | None = None, scale: float = 1.0) -> None:
        super().__init__()
        self.identity, self.scale = coefficients is None, scale
        values = coefficients or [torch.full((1, 1, 1), value) for value in (0.0, 1.0, 0.0)]
        for name, value in zip(("square", "linear", "constant"), values, strict=True):
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value, persistent=not self.identity)
        self.register_buffer("mask", torch.ones(tuple(shape), dtype=torch.bool))
        self.register_buffer("index", torch.arange(self.mask.numel()), persistent=False)

    @property
    def gates(self) -> int:
        """Comparisons for one image."""
        return self.index.numel()

    @torch.no_grad()
    def set_mask(self, mask: Tensor) -> None:
        """Set the neurons that have a gate."""
        self.mask.copy_(mask)
        self.index = self.mask.flatten().nonzero().flatten()

    def forward(self, x: Tensor) -> Tensor:
        """Activate x of shape (N, C, H, W), or (N, C) where the map is 1x1."""
        if x.shape[1:].numel() != self.mask.numel() or x.shape[1] != len(self.mask):
            wanted = "x".join(map(str, self.mask.shape))
            raise UnsupportedModelError(
                f"a site with a gate for single neurons of {wanted} got an input of shape {tuple(x.shape)}: "
                "give images of the size that the network was made for"
            )
        maps = x.reshape(x.shape[0], *self.mask.shape)
        y = self._everywhere(maps) if self.training else self._gathered(maps)
        return y.reshape(x.shape)

    def _everywhere(self, x: Tensor) -> Tensor:
        # Between two numbers, at 0 or at 1: exact, and several times as fast as a choice, above all backward.
        return torch.lerp(self._polynomial(x), F.relu(x), laid_out(self.mask, x))

    def _polynomial(self, x: Tensor) -> Tensor:
        if self.identity:
            return x
        square, linear, constant = (laid_out(value, x) for value in self.factors())
        return (square * x + linear) * x + constant

    def factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the factors of x^2 and x, and the constant."""
        return (self.square if self.scale == 1 else self.scale * self.square), self.linear, self.constant

    def form(self) -> NeuronForm:
        """As it is."""
        return NeuronForm(mask=self.mask, factors=self.factors())

    def _gathered(self, x: Tensor) -> Tensor:
        y = self._polynomial(x)
        if not self.gates:
            return y
        gated = F.relu(x.flatten(1).index_select(1, self.index))
        return y.flatten(1).index_copy(1, self.index, gated).view(x.shape)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        self.index = self.mask.flatten().nonzero().flatten()

    def extra_repr(self) -> str:
        """Description of this site in print(model)."""
        return f"{'x'.join(map(str, self.mask.shape))}, gates={self.gates}"


def keep_largest(scores: Sequence[Tensor], gates: int) -> list[Tensor]:
    """Return the masks of the largest scores over all sites together, one for each gate.

    >>> keep_largest([torch.tensor([0.3, 0.9]), torch.tensor([0.5, 0.7])], 3)
    [tensor([False,  True]), tensor([True, True])]
    """
    every = torch.cat([score.flatten() for score in scores])
    best = every.topk(min(gates, len(every))).indices
    kept = torch.zeros_like(every, dtype=torch.bool).index_fill(0, best, True)
    parts = kept.split([score.numel() for score in scores])
    return [part.view(score.shape) for part, score in zip(parts, scores, strict=True)]


def give_gates(model: nn.Module, scores: Sequence[Tensor], gates: int) -> None:
    """Give the gates of a budget to the neurons with the largest scores, which are in the order of the sites."""
    for (_, module), mask in zip(gated(model), keep_largest(scores, gates), strict=True):
        module.set_mask(mask)


def site_budgets(sites: Sequence[Site], gates: int, weights: Mapping[str, float] | None = None) -> dict[str, int]:
    """Divide a budget over sites in proportion to weights, or to their neurons; each site gets at least one gate.

    Raises:
        BudgetError: The budget cannot be divided, or the weights are for other sites.
    """
    shares = {site.name: float(site.neurons) for site in sites} if weights is None else weights
    check_weights(shares, [site.name for site in sites])
    neurons = [site.neurons for site in sites]
    counts = split_budget([1] * len(neurons), neurons, [shares[site.name] for site in sites], gates)
    return {site.name: count for site, count in zip(sites, counts, strict=True)}


def gated(model: nn.Module) -> Iterator[tuple[str, GatedPolynomial]]:
    """Iterate over such sites by name, in the order of modules."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, GatedPolynomial))
