"""Correlated randomness before the images: dealt, stored, spent once."""
