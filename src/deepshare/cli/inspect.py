"""`deepshare inspect`: where a network compares."""

import json

from deepshare.cli.options import Json, SizedNetwork


def inspect(network: SizedNetwork, *, as_json: Json = False) -> None:
    """List every ReLU call of a network, and what else in it compares.

    Args:
        network: The network.
        as_json: Print JSON.
    """
    size = network.size
    from deepshare import find_sites

    sites = find_sites(network.build(), size)
    print(json.dumps({"model": network.model, **sites.to_dict()}, indent=1) if as_json else sites)
