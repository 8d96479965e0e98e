"""Bytes between two parties."""
