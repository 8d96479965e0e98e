"""The network without replicates as a method: as narrow as its prototypes, with no gate shared."""

from dataclasses import dataclass

from deepshare.methods.base import register
from deepshare.methods.deepshare import DeepShare


@register("trimmed", order=2)
@dataclass
class Trimmed(DeepShare):
    """A plan whose replicate channels are silent, as if they had been cut off; trained like a shared network."""

    replicates: bool = False
