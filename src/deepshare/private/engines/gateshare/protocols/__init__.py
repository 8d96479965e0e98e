"""Protocols, one module for each kind of step."""
