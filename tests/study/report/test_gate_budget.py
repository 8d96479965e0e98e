"""Gates by group of the plan, or by activation."""

from deepshare.study.report import Run
from deepshare.study.report.gate_budget import gates_by_group
from deepshare.study.report.private_cost import Predicted


def test_groups_spend_the_gates_of_the_plan(shared: Run) -> None:
    assert shared.plan is not None
    spent = gates_by_group(shared)
    assert [one.gates for one in spent] == [group.gates for group in shared.plan.groups]
    assert (sum(one.gates for one in spent), sum(one.neurons for one in spent)) == (shared.gates, shared.neurons)


def test_a_plain_network_spends_all_its_relus(plain: Run) -> None:
    assert plain.plan is None
    assert plain.gates == plain.neurons
    spent = gates_by_group(plain)
    assert len(spent) == 8
    assert all(one.gates == one.neurons for one in spent)
    assert sum(one.gates for one in spent) == plain.gates
    assert isinstance(plain.predicted, Predicted)
    assert plain.predicted.plain == {}
