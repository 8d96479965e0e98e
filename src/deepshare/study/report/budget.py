"""Where the gates are spent: a bar for each group of the plan, or for each activation of a network without one."""

from dataclasses import dataclass

from deepshare.private.ir.program import ACTIVATIONS
from deepshare.study.report.cost import ENGINE
from deepshare.study.report.markup import Node, node, section, table
from deepshare.study.report.run import Run


@dataclass(frozen=True)
class Spent:
    """What one place of a network spends.

    Attributes:
        name: The site that computes the gates.
        about: Its prototypes and followers, if there are any.
        gates: Comparisons for one image.
        neurons: ReLUs there in the plain network.
    """

    name: str
    about: str
    gates: int
    neurons: int


def spending(run: Run) -> list[Spent]:
    """What each place spends; nothing where that is not known."""
    if run.plan:
        return [
            Spent(
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
        Spent(layer.name, "", layer.part.comparisons, neurons) for layer, neurons in layers if layer.kind in ACTIVATIONS
    ]


def bars(run: Run) -> Node | None:
    """The section; None where nothing is known."""
    spent = spending(run)
    if not spent:
        return None
    gates, neurons = sum(one.gates for one in spent), sum(one.neurons for one in spent)
    most_gates, most_neurons = max(one.gates for one in spent), max(one.neurons for one in spent)
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
        for one in spent
    ]
    header = ("computed at", "", "gates", "share of all gates", "ReLUs before", "share of all ReLUs", "left")
    about = f"{gates:,} gates for one image in the place of {neurons:,} ReLUs."
    if gates == neurons:
        about = f"All {neurons:,} ReLUs are there."
    return section("Where the gates are spent", about, table(header, rows, "<<><><>", class_="budget"))


def bar(value: float, total: float, most: float, kind: str) -> Node:
    """A share of a total with its percentage, as a bar that is full for the largest of its column."""
    share, length = (value / whole if whole else 0.0 for whole in (total, most))
    fill = node("span", class_=f"fill {kind}", style=f"width:{100 * length:.2f}%") if value else None
    return node("div", node("span", fill, class_="bar"), node("span", f"{share:.1%}", class_="share"), class_="barred")
