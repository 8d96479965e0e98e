"""Private inference: one interface over engines."""
