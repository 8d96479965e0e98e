"""Section on the gate budget: gates of each group of the plan, or of each activation of a network without a plan."""

from dataclasses import dataclass

from deepshare.private.ir.program import ACTIVATIONS
from deepshare.study.report.markup import Node, bar, section, table
from deepshare.study.report.private_cost import ENGINE
from deepshare.study.report.run import Run


@dataclass(frozen=True)
class GroupGates:
    """Part of the gates that one group, or one activation, computes.

    Attributes:
        name: Site that computes the gates.
        about: Its prototypes and followers, if any.
        gates: Comparisons per image.
        neurons: ReLUs of these sites in the plain network.
    """

    name: str
    about: str
    gates: int
    neurons: int


def gates_by_group(run: Run) -> list[GroupGates]:
    """Gates of each group of the plan, or of each activation; empty if unknown."""
    if run.plan:
        return [
            GroupGates(
                group.leader.name,
                f"{group.prototypes} of {group.leader.channels} channels"
                + (f", {len(group.followers) + 1} layers" if group.followers else ""),
                group.gates,
                sum(site.neurons for site in group.sites),
            )
            for group in run.plan.groups
        ]
    predicted = run.predicted
    cost = predicted if isinstance(predicted, str) else predicted.costs[ENGINE]
    if isinstance(predicted, str) or isinstance(cost, str):
        return []
    layers = zip(cost.layers, predicted.elements, strict=True)
    return [
        GroupGates(layer.name, "", layer.part.comparisons, neurons)
        for layer, neurons in layers
        if layer.kind in ACTIVATIONS
    ]


def budget_section(run: Run) -> Node | None:
    """Section of bars; None if the gates are unknown."""
    groups = gates_by_group(run)
    if not groups:
        return None
    gates, neurons = sum(one.gates for one in groups), sum(one.neurons for one in groups)
    most_gates, most_neurons = max(one.gates for one in groups), max(one.neurons for one in groups)
    rows = [
        (
            one.name,
            one.about,
            f"{one.gates:,}",
            bar(one.gates, gates, most_gates, "gates"),
            f"{one.neurons:,}",
            bar(one.neurons, neurons, most_neurons, "plain"),
            f"{one.gates / one.neurons:.1%}",
        )
        for one in groups
    ]
    header = ("computed at", "", "gates", "share of all gates", "ReLUs before", "share of all ReLUs", "left")
    about = f"{gates:,} gates per image in place of {neurons:,} ReLUs."
    if gates == neurons:
        about = f"All {neurons:,} ReLUs are there."
    return section("Gate budget", about, table(header, rows, "<<><><>", class_="budget"))
