"""Cryptographic and arithmetic building blocks; none knows a network."""
