"""Engines: each runs the same program between parties with a protocol of its own."""
