"""SENet's first stage: the sensitivity of each site to losing ReLUs, from the pruning sensitivity of its layers.

A copy of the network is trained with a tenth of its weights, chosen over all layers together. A layer that stays dense
is sensitive to pruning, and its site can lose ReLUs. The site of a layer that needs few weights cannot.
"""

from typing import Any

import torch
from torch import nn

from deepshare.errors import BudgetError
from deepshare.methods.base import Method
from deepshare.methods.gated_polynomial import keep_largest
from deepshare.sharing.observe import is_layer
from deepshare.sharing.sites import Sites

DENSITY = 0.1  # the share of all weights that stay
WHOLE = "whole"  # key of a weight before the cut in the state of the optimiser, which a run resumes from


class Sparse(Method):
    """Trains the plain network with a tenth of its weights: after every step the largest stay, over all layers.

    The others are 0 in every forward pass, but each step starts from all weights as they were before the last cut. So a
    weight that was cut continues to learn, and returns once it is larger than one that stayed.
    """

    def optimiser(self, model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
        """Make the optimiser, which keeps all weights after a step and then cuts them."""
        made = super().optimiser(model, **settings)
        made.register_step_pre_hook(lambda *_: _mend(made, model))
        made.register_step_post_hook(lambda *_: _cut(made, model))
        return made

    def measures(self, model: nn.Module) -> dict[str, float]:
        """Record the share of weights that are left."""
        return {"density": density(list(layer_weights(model).values()))}


def layer_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights of all convolutions and linear layers by path."""
    return {name: module.get_parameter("weight") for name, module in model.named_modules() if is_layer(module)}


@torch.no_grad()
def prune(model: nn.Module) -> None:
    """Set the weights of convolutions and linear layers to 0, except for the largest absolute values."""
    weights = list(dict.fromkeys(layer_weights(model).values()))  # tied ones once
    count = max(1, int(DENSITY * sum(weight.numel() for weight in weights)))
    for weight, kept in zip(weights, keep_largest([weight.abs() for weight in weights], count), strict=True):
        weight.mul_(kept)


@torch.no_grad()
def _mend(optimiser: torch.optim.Optimizer, model: nn.Module) -> None:
    for weight in layer_weights(model).values():
        if (whole := optimiser.state.get(weight, {}).get(WHOLE)) is not None:
            weight.copy_(whole)


@torch.no_grad()
def _cut(optimiser: torch.optim.Optimizer, model: nn.Module) -> None:
    for weight in layer_weights(model).values():
        if weight.grad is not None:  # Adam takes a weight with a state for one that it has begun with
            optimiser.state[weight][WHOLE] = weight.clone()
    prune(model)


def density(weights: list[nn.Parameter]) -> float:
    """Return the share of weights that are not 0."""
    left = sum(int(torch.count_nonzero(weight)) for weight in weights)
    return left / sum(weight.numel() for weight in weights)


def check_layers(sites: Sites) -> None:
    """Check that there is something to measure.

    Raises:
        BudgetError: No site activates the output of a layer.
    """
    if not any(place.layers for place in sites.places):
        raise BudgetError(
            'budget.allocate = "pruning" looks at the weights of the layer before each ReLU, and here no ReLU comes '
            "after a convolution or a linear layer: allocate by uniform, by snl or by a file of counts"
        )


def relu_sensitivities(network: nn.Module, sites: Sites) -> dict[str, float]:
    """Return weights of sites: 1 - the density of the layers whose outputs a site activates.

    Args:
        network: Network trained by `Sparse`.
        sites: Its sites.

    Returns:
        Weight of each site. A site that reads only activations counts as fed by all layers.
    """
    weights = layer_weights(network)
    return {
        place.site.name: 1 - density([weights[layer] for layer in place.layers or weights]) for place in sites.places
    }
