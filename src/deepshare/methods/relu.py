"""The plain network as a method: every ReLU stays."""

from typing import ClassVar

from deepshare.methods.base import Method, register


@register("relu", order=1)
class PlainReLU(Method):
    """Train the plain network and change nothing in it."""

    kind: ClassVar = "plain"
    phases: ClassVar = ("plain",)
