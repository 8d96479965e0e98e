"""Engines by name, and parties as processes and threads of this machine: start them, watch them, collect results.

The names stand here because help texts list them, and importing the interface of engines takes seconds.
"""

MODULES = {
    "crypten": "deepshare.private.engines.crypten",
    "gateshare": "deepshare.private.engines.gateshare",
    "gateshare-2pc": "deepshare.private.engines.gateshare",
    "spu-cheetah": "deepshare.private.engines.spu",
    "spu-semi2k": "deepshare.private.engines.spu",
}
