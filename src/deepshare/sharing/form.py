"""The form of activations whose neurons have gates of their own or none: all that private inference has to know."""

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, eq=False, kw_only=True)
class NeuronForm:
    """ReLU of the neurons with a gate; of all others square x^2 + linear x + constant, or x itself.

    Attributes:
        mask: True for neurons with a gate; broadcasts to the map (C, H, W).
        factors: square, linear and constant, which broadcast to the map; None for x itself.
        patches: Height and width of the patches of each channel with gates, whose neurons share one; None where each
            neuron has its own.
    """

    mask: Tensor
    factors: tuple[Tensor, Tensor, Tensor] | None = None
    patches: Tensor | None = None


class NeuronActivation(nn.Module):
    """An activation that has such a form once it is trained."""

    def unfinished(self) -> tuple[str, str] | None:
        """Return why it has no form yet and how to finish it; None if it has one."""
        return None

    def form(self) -> NeuronForm:
        """Return its form."""
        raise NotImplementedError
