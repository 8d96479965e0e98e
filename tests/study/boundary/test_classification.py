"""The corollary: one ReLU and any linear neurons have no boundary, a line, two parallel lines or a two-piece line."""

from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deepshare.study.boundary.classification import (
    TELLING_POINTS,
    Boundary,
    Coordinates,
    Form,
    OneRelu,
    classify,
    misses,
)
from deepshare.study.xor.experiment import XorSettings, accuracies, grid, label, run
from deepshare.study.xor.networks import ALPHA, BETA, BIAS, OUT, WEIGHT, XorNetworks

# Small whole numbers make every degenerate case common; floats make the general one.
small = st.integers(-2, 2)
reals = st.floats(-8, 8, allow_subnormal=False)
numbers = st.one_of(small, reals)
Layers = tuple[list[tuple[float, float]], list[float], list[float], float]


def layers(most: int, values: st.SearchStrategy[float]) -> st.SearchStrategy[Layers]:
    """Hidden layers of up to so many neurons, the first with a ReLU, and the layer after them."""
    return st.integers(1, most).flatmap(
        lambda n: st.tuples(
            st.lists(st.tuples(values, values), min_size=n, max_size=n),
            st.lists(values, min_size=n, max_size=n),
            st.lists(values, min_size=n, max_size=n),
            values,
        )
    )


def zeros_on(network: OneRelu, start: Coordinates, step: Coordinates) -> list[Fraction] | None:
    """The t where f(start + t step) = 0, found from values of f alone; None if they fill an interval.

    Along the line f is linear on both sides of the gate, so two values on a side give its zero there.
    """

    def at(t: Fraction) -> Coordinates:
        return Fraction(start[0]) + t * Fraction(step[0]), Fraction(start[1]) + t * Fraction(step[1])

    rise = network.gate(at(Fraction(1))) - network.gate(at(Fraction(0)))
    kink = -network.gate(at(Fraction(0))) / rise if rise else Fraction(0)
    found = set()
    for side in (-1, 1):
        near, far = network(at(kink)), network(at(kink + side))
        if near == far == 0:
            return None
        if near != far and near / (near - far) >= 0:
            found.add(kink + side * near / (near - far))
    return sorted(found)


def lines(boundary: Boundary) -> list[Form]:
    return [piece.line for piece in boundary.pieces]


@settings(max_examples=300, deadline=None)
@given(layers(5, numbers), st.tuples(small, small), st.tuples(small, small).filter(any))
@example(([(1, 0)], [0], [1], 0), (0, 0), (1, 0))  # relu(x1): zero on the left half-plane
@example(([(1, 0), (1, 0)], [0, 0], [-1, 1], 0), (0, 0), (1, 0))  # x1 - relu(x1): zero on the right one
@example(([(1, 0), (1, 0)], [0, 0], [-2, 1], 0), (0, 0), (1, 0))  # -|x1|: touches zero and goes back
def test_every_boundary_is_one_of_the_kinds_and_is_where_the_network_is_zero(
    values: Layers, start: tuple[int, int], step: tuple[int, int]
) -> None:
    network = OneRelu.of(*values)
    boundary = classify(network)
    probe = zeros_on(network, start, step)
    if probe is not None:
        assert len(probe) <= 2
        for t in probe:
            assert (start[0] + t * step[0], start[1] + t * step[1]) in boundary
    for steps in range(-3, 4):
        x = (start[0] + steps * step[0], start[1] + steps * step[1])
        assert (x in boundary) == (network(x) == 0)
    shape(boundary, network)


def shape(boundary: Boundary, network: OneRelu) -> None:
    """Each kind looks as its name says."""
    match boundary.kind:
        case "none":
            assert boundary == Boundary("none")
        case "line":
            assert len(boundary.pieces) == 1
            assert boundary.pieces[0].within is None
            assert any(lines(boundary)[0].slope)
        case "parallel lines":
            first, second = lines(boundary)
            assert first.slope == second.slope
            assert first.offset != second.offset
            assert all(piece.within is None for piece in boundary.pieces)
        case "two-piece line":
            first, second = lines(boundary)
            assert not first.parallel(second)
            meeting = meet(first, second)
            assert network.gate(meeting) == 0
            assert all(meeting in piece for piece in boundary.pieces)
        case "half-plane":
            assert boundary.area is not None
            assert boundary.area.parallel(network.gate)
            assert any(boundary.area.slope)
        case "plane":
            assert all(network(x) == 0 for x in TELLING_POINTS)


def meet(first: Form, second: Form) -> Coordinates:
    (a, b), (c, d) = first.slope, second.slope
    determinant = a * d - b * c
    return (
        (b * second.offset - d * first.offset) / determinant,
        (c * first.offset - a * second.offset) / determinant,
    )


@settings(max_examples=200, deadline=None)
@given(layers(1, numbers))
def test_a_network_of_one_neuron_has_one_line_at_most(values: Layers) -> None:
    network = OneRelu.of(*values)
    kind = classify(network).kind
    assert kind in ("none", "line", "half-plane", "plane")
    if network.a and any(network.gate.slope) and values[3]:
        opposite = network.a * Fraction(values[3]) < 0
        assert kind == ("line" if opposite else "none")


@settings(max_examples=300, deadline=None)
@given(layers(6, numbers))
def test_none_solves_the_checkerboard(values: Layers) -> None:
    network = OneRelu.of(*values)
    missed = misses(network)
    assert missed
    for x in missed:
        assert (network(x) > 0) != (x[0] * x[1] < 0)


def test_the_shared_gate_of_the_paper_misses_none_of_the_telling_points() -> None:
    assert misses(lambda x: x[1] * (-2 * (x[0] >= 0) + 1)) == ()


def test_the_telling_points_are_middles_of_points_with_the_other_label() -> None:
    for one, other, middle in (TELLING_POINTS[:3], TELLING_POINTS[3:]):
        assert middle == ((one[0] + other[0]) / 2, (one[1] + other[1]) / 2)
        assert (one[0] * one[1] < 0) == (other[0] * other[1] < 0) != (middle[0] * middle[1] < 0)


@pytest.mark.parametrize(
    ("kind", "weight", "bias", "out", "offset"),
    [
        ("none", [(1, 2)], [1], [3], 1),
        ("none", [(0, 0), (0, 0)], [1, 1], [1, 1], 1),
        ("line", [(1, 2)], [1], [3], -1),
        ("line", [(0, 0), (1, 1)], [5, 0], [1, 1], 0),
        ("line", [(1, 0), (1, 0)], [0, 0], [-2, 1], 0),
        ("parallel lines", [(1, 0), (1, 0)], [0, 0], [-2, 1], 1),
        ("two-piece line", [(1, 0), (0, 1)], [0, 0], [1, 1], 1),
        ("half-plane", [(1, 0)], [0], [1], 0),
        ("half-plane", [(1, 0), (1, 0)], [1, 1], [-1, 1], 0),
        ("plane", [(1, 0)], [0], [0], 0),
    ],
)
def test_known_cases(
    kind: str, weight: Sequence[tuple[int, int]], bias: Sequence[int], out: Sequence[int], offset: int
) -> None:
    assert classify(OneRelu.of(weight, bias, out, offset)).kind == kind


def test_two_parallel_lines_lie_where_they_should() -> None:
    """1 - |x1 + x2| is zero where x1 + x2 is -1 or 1."""
    boundary = classify(OneRelu.of([(1, 1), (1, 1)], [0, 0], [-2, 1], 1))
    assert lines(boundary) == [Form.of((1, 1), 1), Form.of((1, 1), -1)]


def network_of(networks: XorNetworks, neurons: int, index: int) -> OneRelu:
    values = networks.neurons[:, :neurons, index]
    weight = [(float(a), float(b)) for a, b in values[WEIGHT].T]
    return OneRelu.of(weight, values[BIAS].tolist(), values[OUT].tolist(), networks.offset[index].item())


def test_the_trained_networks_of_the_xor_study_are_such_networks() -> None:
    result = run(XorSettings(seeds=3, epochs=20, points=80))
    for name in ("relu", "snl"):
        outcome = result[name]
        network = network_of(outcome.network, outcome.method.neurons, 0)
        points = grid()[:, ::97, :].double()
        exact = [float(network((a, b))) for a, b in points[..., 0].T.tolist()]
        logits = outcome.network.forward(points.float()).logits[:, 0].double()
        torch.testing.assert_close(logits, torch.tensor(exact, dtype=torch.float64), rtol=1e-4, atol=1e-5)
        assert classify(network).kind in {"relu": ("line", "none"), "snl": ("two-piece line",)}[name]
        assert misses(network)


def test_a_network_that_misses_a_point_is_no_solution_on_the_grid_either() -> None:
    """Hundreds of random networks: all miss a telling point and label less than the whole grid rightly."""
    neurons = torch.randn(6, 3, 300)
    neurons[ALPHA], neurons[BETA] = 0.0, 1.0
    neurons[ALPHA, 0], neurons[BETA, 0] = 1.0, 0.0
    networks = XorNetworks(neurons, torch.randn(300) * 0.3, neurons)
    assert all(misses(network_of(networks, 3, index)) for index in range(300))
    assert accuracies(networks).max() < 1
    assert label(torch.tensor(TELLING_POINTS, dtype=torch.float64).T).tolist() == [0, 0, 1, 1, 1, 0]
