"""Run folders: everything that a training run writes and reads back."""
