"""Checks on what a builder was asked for."""

from deepshare.errors import ModelNameError


def check_counts(network: str, **counts: int) -> None:
    """Raise unless every named argument is a whole number of at least one.

    Raises:
        ModelNameError: Names the network, the argument and its value.
    """
    for argument, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ModelNameError(f"{network}: {argument} must be a whole number of at least 1, not {count!r}")
