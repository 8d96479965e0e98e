"""`deepshare inspect`: the ReLUs of a network."""

import json

from deepshare.cli.options import (
    NO_REWRITING,
    InputSize,
    Json,
    Model,
    ModelArguments,
    Rewriting,
    build,
    note_weights,
    size_of,
)


def inspect(
    model: Model,
    /,
    *,
    input_size: InputSize = None,
    arguments: ModelArguments = None,
    rewriting: Rewriting = NO_REWRITING,
    as_json: Json = False,
) -> None:
    """List every ReLU call of a network, its other operations that compare, and the engines that run it."""
    size = size_of(model, input_size)
    from deepshare import find_sites

    note_weights(model)
    network = build(model, rewriting, **(arguments or {}))
    sites = find_sites(network, size)
    from deepshare.private.cost import describe_engines, engine_problems

    engines = engine_problems(network, size)
    if as_json:
        print(json.dumps({"model": model, **sites.to_dict(), "engines": engines}, indent=1))
    else:
        print(f"{sites}\n{describe_engines(engines)}")
