"""The engine's one option."""

from collections.abc import Mapping

from deepshare.errors import EngineError

PROVIDERS = ("tfp", "ttp")


def provider(options: Mapping[str, str]) -> str:
    """Who deals the random numbers: tfp, the trusted first party, or ttp, a trusted third party.

    Raises:
        EngineError: Another option or value.
    """
    unknown = set(options) - {"provider"}
    if unknown:
        raise EngineError(f"engine crypten has no option {', '.join(sorted(unknown))}: its only one is provider")
    chosen = options.get("provider", PROVIDERS[0])
    if chosen not in PROVIDERS:
        raise EngineError(f"engine crypten has no provider {chosen}: take one of {', '.join(PROVIDERS)}")
    return chosen
