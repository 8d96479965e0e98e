"""The best classes without their scores: rounds of comparisons, of which the client learns the result alone.

Scores stand in slots, each with the number of its class. A comparison of two slots is a gate of their difference, which
the difference of their numbers shares: d = g (x_p - x_q) for both, where g is 1 if the first score is not smaller. Then
x_q + d is the winner and x_p - d the loser. The gate is that of `gate`, without alpha and beta: numbers of classes are
never rounded, so that the client gets exactly these, and no noise is needed to hide anything else.

The first place is a knock-out among all slots. Who loses there plays for the second place, who loses there for the
third, and so on. All places are played for at the same time: in each round whoever is left for a place is paired with
the next. Which slots are compared does not depend on scores.

For each round, of m comparisons
    1. both               x = x_p - x_q, scores and numbers                                   2 m neurons
    2. one gate           m comparisons; one round                                            16 bytes a pair each way
    3. both               slots p and q anew
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepshare.private.engines.gateshare.protocols.gate import add_relu
from deepshare.private.engines.gateshare.protocols.local import LocalStep, TakeStep
from deepshare.private.engines.gateshare.protocols.schedule import ScheduleBuilder
from deepshare.private.engines.gateshare.protocols.step import ClientOffline
from deepshare.private.ir.program import TopClasses

Pairs = list[tuple[int, int]]


def tournament(slots: int, places: int) -> tuple[list[Pairs], list[int]]:
    """Rounds of pairs of slots, of which the winner comes to the first; and the slot of each place at the end.

    >>> tournament(5, 1)
    ([[(0, 1), (2, 3)], [(0, 2)], [(0, 4)]], [0])
    """
    left: list[list[int]] = [list(range(slots)), *([] for _ in range(places - 1))]
    rounds: list[Pairs] = []
    while any(len(some) > 1 for some in left):
        pairs = [list(zip(some[::2], some[1::2], strict=False)) for some in left]
        beaten = [[], *([loser for _, loser in some] for some in pairs)]
        left = [some[::2] + losers for some, losers in zip(left, beaten[:places], strict=True)]
        rounds.append([pair for some in pairs for pair in some])
    return rounds, [some[0] for some in left]


@dataclass(frozen=True, eq=False, kw_only=True)
class NumberedStep(LocalStep):
    """Scores, and after them the numbers of their classes, which the server adds."""

    def apply(self, inputs: list[Tensor]) -> Tensor:
        """Add the numbers."""
        (x,) = inputs
        numbers = torch.arange(x.shape[1]).view(-1, *[1] * (x.dim() - 2)) << self.scale
        return torch.cat([x, numbers.expand(x.shape)], 1)

    def client_offline(self, inputs: list[Tensor], at: ClientOffline) -> Tensor:
        """Add zeros: numbers of slots are public."""
        return torch.cat([inputs[0], torch.zeros_like(inputs[0])], 1)


@dataclass(frozen=True, eq=False, kw_only=True)
class PairStep(LocalStep):
    """Differences of two slots, of scores and of numbers."""

    first: Tensor
    second: Tensor

    def apply(self, inputs: list[Tensor]) -> Tensor:
        """Subtract."""
        return inputs[0][:, self.first] - inputs[0][:, self.second]


@dataclass(frozen=True, eq=False, kw_only=True)
class ExchangeStep(LocalStep):
    """Winners in the first slot of each pair, losers in the second, given slots and differences times gates."""

    first: Tensor
    second: Tensor

    def apply(self, inputs: list[Tensor]) -> Tensor:
        """Exchange."""
        slots, difference = inputs
        result = slots.clone()
        result[:, self.first] = slots[:, self.second] + difference
        result[:, self.second] = slots[:, self.first] - difference
        return result


def lower_top(builder: ScheduleBuilder, operation: int, node: TopClasses) -> None:
    """Add the steps of a choice of classes."""
    (before,), count, area = node.inputs, node.classes, node.shape[1:]
    bits = builder.number_format.ranges[before] + 1
    scale = builder.number_format.fraction
    slots = builder.append(
        NumberedStep(
            number=builder.next_number,
            operation=operation,
            inputs=(builder.at_activation_scale(before),),
            shape=(2 * count, *area),
            scale=scale,
        )
    )
    rounds, winners = tournament(count, node.shape[0])
    for pairs in rounds:
        p, q = (torch.tensor([*side, *(count + slot for slot in side)]) for side in zip(*pairs, strict=True))
        neurons = (2 * len(pairs), *area)
        pair = PairStep(
            number=builder.next_number,
            operation=operation,
            inputs=(slots,),
            shape=neurons,
            scale=scale,
            first=p,
            second=q,
        )
        builder.append(pair)
        relu = add_relu(builder, operation, pair, torch.arange(len(pairs)).repeat(2), bits)
        slots = builder.append(
            ExchangeStep(
                number=builder.next_number,
                operation=operation,
                inputs=(slots, relu),
                shape=(2 * count, *area),
                scale=scale,
                first=p,
                second=q,
            )
        )
    numbers = TakeStep(
        number=builder.next_number,
        operation=operation,
        inputs=(slots,),
        shape=node.shape,
        scale=scale,
        dimension=0,
        index=torch.tensor([count + slot for slot in winners]),
    )
    builder.append(numbers, result_of=operation)
