"""Benchmarks, mostly as ratios to a peer in the same run; each file documents its command."""
