"""DeepShare: share the ReLU gates of a network across channels and layers, within a budget."""

__version__ = "0.1.0"
