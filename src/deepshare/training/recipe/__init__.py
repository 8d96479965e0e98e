"""Recipes: TOML files, their schema, their keys as flags."""
