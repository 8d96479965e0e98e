"""Segmentation runs side by side on the same test images."""

from deepshare.study.scenes.comparison import SceneComparison, compare

__all__ = ["SceneComparison", "compare"]
