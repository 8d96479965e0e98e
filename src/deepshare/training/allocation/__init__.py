"""Allocations: how many of the budget's gates each site gets."""
