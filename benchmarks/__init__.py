"""Ratios, side by side in one run; each file says how it is called."""
