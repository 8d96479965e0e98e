"""Comparison of methods on one network and data set: the same teacher, the same epochs, the same counting of gates."""
