"""Classification of the decision boundary of a network with one ReLU and any number of linear neurons.

Such a network (SNL with a single gate) computes

    f(x) = a relu(w . x + b) + v . x + c,    x in the plane,

and its boundary {f = 0} is empty, a line, two parallel lines, or two rays that meet on the gate's own line. One more
case, which the proof in the paper's supplement omits, is degenerate: f is zero on a half-plane, one side of the gate.
All arithmetic is in exact fractions, so the classification does not depend on a tolerance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

BoundaryKind = Literal["none", "line", "parallel lines", "two-piece line", "half-plane", "plane"]
Number = Fraction | float
Coordinates = tuple[Number, Number]

# Every f above is convex or concave. In each triple the third point is the midpoint of the other two and has the other
# label; so a convex f is wrong on one of the first three points, and a concave f on one of the last three.
TELLING_POINTS: tuple[Coordinates, ...] = tuple(
    (Fraction(x1, 4), Fraction(x2, 4)) for x1, x2 in ((1, 3), (-3, -1), (-1, 1), (-1, 3), (3, -1), (1, 1))
)


@dataclass(frozen=True)
class Form:
    """The affine form slope . x + offset, and the line of its zeros."""

    slope: tuple[Fraction, Fraction]
    offset: Fraction

    @classmethod
    def of(cls, slope: Sequence[Number], offset: Number) -> "Form":
        """Convert numbers to fractions, exactly."""
        first, second = slope
        return cls((Fraction(first), Fraction(second)), Fraction(offset))

    @property
    def constant(self) -> bool:
        """True if the slope is zero."""
        return not any(self.slope)

    def __call__(self, x: Coordinates) -> Fraction:
        """Evaluate at a point."""
        return self.slope[0] * Fraction(x[0]) + self.slope[1] * Fraction(x[1]) + self.offset

    def plus(self, other: "Form", factor: Fraction) -> "Form":
        """Add a multiple of another form."""
        slope = (self.slope[0] + factor * other.slope[0], self.slope[1] + factor * other.slope[1])
        return Form(slope, self.offset + factor * other.offset)

    def dot(self, other: "Form") -> Fraction:
        """Inner product of the slopes."""
        return self.slope[0] * other.slope[0] + self.slope[1] * other.slope[1]

    def parallel(self, other: "Form") -> bool:
        """Return True if the slopes are parallel."""
        return self.slope[0] * other.slope[1] == self.slope[1] * other.slope[0]


@dataclass(frozen=True)
class OneRelu:
    """A network with one ReLU; its linear neurons together are one affine form.

    Attributes:
        a: Output weight of the ReLU.
        gate: Input of the ReLU, w . x + b.
        linear: The linear part, v . x + c; with zero slope if the network has no linear neurons.
    """

    a: Fraction
    gate: Form
    linear: Form

    @classmethod
    def of(
        cls, weight: Sequence[Sequence[Number]], bias: Sequence[Number], out: Sequence[Number], offset: Number
    ) -> "OneRelu":
        """Build from a hidden layer whose first neuron is a ReLU and whose others are linear, and an output layer."""
        neurons = [Form.of(w, b) for w, b in zip(weight, bias, strict=True)]
        linear = Form.of((0, 0), offset)
        for neuron, factor in zip(neurons[1:], out[1:], strict=True):
            linear = linear.plus(neuron, Fraction(factor))
        return cls(Fraction(out[0]), neurons[0], linear)

    def __call__(self, x: Coordinates) -> Fraction:
        """Evaluate f at a point, exactly."""
        return self.a * max(self.gate(x), Fraction(0)) + self.linear(x)


@dataclass(frozen=True)
class LinePiece:
    """A line, or its part in the half-plane where `within` is not negative."""

    line: Form
    within: Form | None = None

    def __contains__(self, x: Coordinates) -> bool:
        return self.line(x) == 0 and (self.within is None or self.within(x) >= 0)


@dataclass(frozen=True)
class Boundary:
    """Zeros of a network.

    Attributes:
        kind: Shape of the boundary.
        pieces: Lines and rays.
        area: Form that is not negative on the half-plane, or plane, of zeros.
    """

    kind: BoundaryKind
    pieces: tuple[LinePiece, ...] = ()
    area: Form | None = None

    def __contains__(self, x: Coordinates) -> bool:
        return any(x in piece for piece in self.pieces) or (self.area is not None and self.area(x) >= 0)


def classify(network: OneRelu) -> Boundary:
    """Classify the boundary of a network with one ReLU and any number of linear neurons.

    Example:
        >>> classify(OneRelu.of(weight=[(1, 0), (0, 1)], bias=[0, 0], out=[2, 1], offset=0)).kind
        'two-piece line'
        >>> classify(OneRelu.of(weight=[(1, 0)], bias=[0], out=[2], offset=-1)).kind
        'line'
    """
    a, gate, linear = network.a, network.gate, network.linear
    minus = Form.of((0, 0), 0).plus(gate, Fraction(-1))
    if a == 0 or gate.constant:  # the ReLU contributes nothing, or a constant
        return _of_form(Form(linear.slope, linear.offset + a * max(gate.offset, Fraction(0))))
    if not linear.parallel(gate):
        return Boundary("two-piece line", (LinePiece(linear, minus), LinePiece(linear.plus(gate, a), gate)))
    # Now f depends on z = w . x + b alone: f = closed z + rest where the gate is closed, open z + rest elsewhere.
    closed = linear.dot(gate) / gate.dot(gate)
    return _of_depth(gate, closed, closed + a, linear.offset - closed * gate.offset)


def _of_form(form: Form) -> Boundary:
    if not form.constant:
        return Boundary("line", (LinePiece(form),))
    return Boundary("plane", area=form) if form.offset == 0 else Boundary("none")


def _of_depth(gate: Form, closed: Fraction, open: Fraction, rest: Fraction) -> Boundary:
    if rest == 0 and closed == 0:
        return Boundary("half-plane", area=Form.of((0, 0), 0).plus(gate, Fraction(-1)))
    if rest == 0 and open == 0:
        return Boundary("half-plane", area=gate)
    zeros = {-rest / slope for slope, side in ((closed, -1), (open, 1)) if slope and -rest / slope * side >= 0}
    pieces = tuple(LinePiece(Form(gate.slope, gate.offset - zero)) for zero in sorted(zeros))
    kinds: tuple[BoundaryKind, ...] = ("none", "line", "parallel lines")
    return Boundary(kinds[len(pieces)], pieces)


def misses(score: Callable[[Coordinates], Number]) -> tuple[Coordinates, ...]:
    """Points of `TELLING_POINTS` that a network labels wrongly; with one ReLU and linear neurons at least one.

    The checkerboard's label is 1, a score above zero, where the signs of the coordinates differ.
    """
    return tuple(x for x in TELLING_POINTS if (score(x) > 0) != ((x[0] >= 0) != (x[1] >= 0)))
