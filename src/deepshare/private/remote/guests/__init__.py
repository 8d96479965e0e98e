"""Guests of a server: their connections from the first byte to the last, their places and turns, and what is logged."""
