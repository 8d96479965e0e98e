"""Learned pi: straight-through assignment of prototypes, then frozen."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from deepshare.sharing.activation import activate, activate_assigned, assignment
from deepshare.sharing.gates import (
    LEAD,
    GateCell,
    SharedReLU,
    freeze_pi,
    learn_pi,
    moved_share,
    prototype_of,
    set_progress,
)


def learning(channels: int, prototypes: int, **options: Any) -> SharedReLU:
    site = SharedReLU(channels, prototypes, mapping="learned", **options)
    set_progress(site, 0)
    learn_pi(site)
    return site


def chosen(site: SharedReLU) -> nn.Parameter:
    assert site.preference is not None
    return site.preference


def test_a_step_by_hand() -> None:
    site = learning(3, 2)
    with torch.no_grad():
        chosen(site).copy_(torch.tensor([[0.3, 0.1]]))
        site.alpha[2], site.beta[2] = 3, -1
    x = torch.tensor([[0.0, 10.0, 2.0]])  # gates 1/2 and 1, since Phi(10) is 1 in this format
    y = site(x)[0, 2]
    assert y.item() == pytest.approx(2 * (3 / 2 - 1))
    (-y).backward()
    grad = chosen(site).grad
    assert grad is not None
    assert grad.tolist() == [[pytest.approx(-2 * 3 / 2), pytest.approx(-2 * 3)]]
    torch.optim.SGD([chosen(site)], lr=0.1).step()
    assert chosen(site).tolist() == [[pytest.approx(0.6), pytest.approx(0.7)]]
    assert site(x)[0, 2].item() == pytest.approx(2 * (3 * 1 - 1))
    freeze_pi(site)
    assert site.pi.tolist() == [0, 1, 1]
    assert site(x)[0, 2].item() == pytest.approx(4)
    assert moved_share(site) == pytest.approx(1 / 3)  # from 2 mod 2 = 0


def test_an_assignment_is_of_zeros_and_ones_exactly() -> None:
    assert assignment(torch.tensor([[0.1, 0.3, 0.2], [-1e-9, -3.0, -2.0]])).tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_it_computes_what_an_index_does(layout: torch.memory_format) -> None:
    x, gates = (torch.rand(2, c, 3, 4, dtype=torch.float64).contiguous(memory_format=layout) for c in (5, 3))
    alpha, beta = torch.rand(2, 5, dtype=torch.float64)
    index = torch.tensor([2, 0, 1, 1, 0])
    values = [value.requires_grad_() for value in (x, gates, alpha, beta)]
    one_hot = nn.functional.one_hot(index, 3).double()
    results = activate(x, gates, index, alpha, beta), activate_assigned(x, gates, one_hot, alpha, beta)
    torch.testing.assert_close(*results, rtol=0, atol=1e-15)
    assert results[1].is_contiguous(memory_format=layout)
    for ours, theirs in zip(*(torch.autograd.grad(y.square().sum(), values) for y in results), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-13)


def test_nothing_changes_until_a_channel_prefers_another() -> None:
    cell = GateCell()
    acts = [SharedReLU(5, 2, mapping="learned", cell=cell, position=k) for k in range(2)]
    sites = nn.ModuleList(acts)
    set_progress(sites, 0)
    x = torch.randn(4, 5, 2, 2)
    before = [act(x) for act in acts]
    learn_pi(sites)
    assert [tuple(chosen(site).shape) for site in acts] == [(3, 2), (5, 2)]
    for act, y in zip(acts, before, strict=True):
        torch.testing.assert_close(act(x), y)
    assert moved_share(sites) == 0
    with torch.no_grad():
        for act in acts:
            chosen(act)[-1, act.pi[-1]] -= LEAD * 1.01
    assert moved_share(sites) == pytest.approx(2 / 10)


def test_pi_is_kept_with_the_weights_only_where_it_was_learned() -> None:
    site = SharedReLU(6, 3, mapping="learned")
    site.pi.copy_(torch.tensor([0, 1, 2, 2, 2, 1]))
    assert set(site.state_dict()) == {"alpha", "beta", "pi"}
    assert set(SharedReLU(6, 3).state_dict()) == {"alpha", "beta"}
    again = SharedReLU(6, 3, mapping="learned")
    assert again.pi.tolist() == prototype_of(6, 3, "round-robin").tolist()
    set_progress(again, 0.5)
    again.load_state_dict(site.state_dict())
    set_progress(site, 0.5)
    x: Tensor = torch.randn(8, 6)
    assert torch.equal(again(x), site(x))  # also with some gates soft and some hard


@pytest.mark.parametrize(("channels", "prototypes"), [(4, 4), (4, 1)])
def test_a_site_without_a_choice_has_no_preferences(channels: int, prototypes: int) -> None:
    assert learning(channels, prototypes).preference is None
