"""The method: a model in, a model with shared gates out."""
