"""Protocols, one module for each kind of step.

Steps: `linear`, `truncation`, `gate`, `square` and `local`. Shared by them: `step`, the interface of all; `schedule`,
the steps of a network in their order; `comparison`, the comparison with a dealer's keys, and `carry`, the one without a
dealer, both for `gate`; `transfers`, products by oblivious transfer, for steps that have no dealer.
"""
