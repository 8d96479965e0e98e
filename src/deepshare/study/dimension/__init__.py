"""Effective dimension and correlation of a trained network's gates (section 3.1 of the paper)."""

from deepshare.study.dimension.analysis import measure, measure_run
from deepshare.study.dimension.summary import Dimension, SiteGates

__all__ = ["Dimension", "SiteGates", "measure", "measure_run"]
