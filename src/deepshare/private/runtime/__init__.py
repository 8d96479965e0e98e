"""Parties as processes and threads of this machine: start them, watch them, collect their results."""
