"""`deepshare inspect`: the ReLUs of a network."""

import json

from deepshare.cli.options import NO_REWRITING, InputSize, Json, Model, Rewriting, build, size_of


def inspect(
    model: Model, /, *, input_size: InputSize = None, rewriting: Rewriting = NO_REWRITING, as_json: Json = False
) -> None:
    """List every ReLU call of a network, and its other operations that compare."""
    size = size_of(model, input_size)
    from deepshare import find_sites

    sites = find_sites(build(model, rewriting), size)
    print(json.dumps({"model": model, **sites.to_dict()}, indent=1) if as_json else sites)
