"""Which site the data prefers as a leader, on gates worked out by hand."""

import pytest
import torch
from torch import Tensor, nn

from deepshare.sharing.planning import plan
from deepshare.training.allocation.leaders import explained, preferred, squared_correlations


class ThreeSites(nn.Module):
    """Three sites of one channel, whose gates are the signs of the three inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.ReLU(), nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([site(x[:, i : i + 1]) for i, site in enumerate((self.first, self.second, self.third))], 1)


# The first agrees with the others in six of eight images: a correlation of 1/2. The others are the same.
SIGNS = torch.tensor([[1, 1, 1, 1, -1, -1, -1, -1], [1, 1, 1, -1, 1, -1, -1, -1], [1, 1, 1, -1, 1, -1, -1, -1]]).t()


def test_by_hand() -> None:
    model = ThreeSites()
    made = plan(model, (3,), 1)
    images = SIGNS.float()
    found = explained(model, made, [images[:3], images[3:]])
    assert found == {
        "first": pytest.approx((1 + 1 / 4 + 1 / 4) / 3),
        "second": pytest.approx((1 + 1) / 3),  # the first cannot follow it
        "third": pytest.approx(1 / 3),
    }
    assert preferred(made, found) == ["second"]
    assert plan(model, (3,), 1, leaders=preferred(made, found)).groups[0].lead == 1


def test_the_first_of_equal_ones_is_preferred() -> None:
    made = plan(ThreeSites(), (3,), 1)
    assert preferred(made, {"first": 0.5, "second": 0.5, "third": 0.5}) == ["first"]


def test_correlations_are_those_of_numpy_and_constant_gates_have_none() -> None:
    generator = torch.Generator().manual_seed(0)
    one, two = (torch.randint(0, 2, (channels, 50), generator=generator).double() for channels in (3, 2))
    one[2] = 1
    rows = [torch.cat([gates, torch.ones(1, 50)]) for gates in (one, two)]
    found = squared_correlations(rows[0] @ rows[1].t())
    expected = torch.corrcoef(torch.cat([one[:2], two]))[:2, 2:].square()
    torch.testing.assert_close(found[:2], expected)
    assert found[2].tolist() == [0, 0]
