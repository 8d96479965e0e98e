"""Affine parameters of trained networks with shared gates (supplement E of the paper)."""

from deepshare.study.affine.parameters import NetworkAffine, SiteAffine, linear_like, read, read_run

__all__ = ["NetworkAffine", "SiteAffine", "linear_like", "read", "read_run"]
