"""The plain network as a method: every ReLU stays."""

from deepshare.methods.base import Method


class PlainReLU(Method):
    """Nothing is done to the network."""
