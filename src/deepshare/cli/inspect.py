"""`deepshare inspect`: the ReLUs of a network."""

import json

from deepshare.cli.options import InputSize, Json, Model, Relu6ToRelu, build, size_of


def inspect(
    model: Model, /, *, input_size: InputSize = None, relu6_to_relu: Relu6ToRelu = False, as_json: Json = False
) -> None:
    """List every ReLU call of a network, and its other operations that compare."""
    size = size_of(model, input_size)
    from deepshare import find_sites

    sites = find_sites(build(model, relu6_to_relu=relu6_to_relu), size)
    print(json.dumps({"model": model, **sites.to_dict()}, indent=1) if as_json else sites)
