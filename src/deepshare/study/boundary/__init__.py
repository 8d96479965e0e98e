"""Decision boundaries of networks with one ReLU (corollary in the paper's supplement)."""

from deepshare.study.boundary.classification import Boundary, Form, OneRelu, classify, misses

__all__ = ["Boundary", "Form", "OneRelu", "classify", "misses"]
