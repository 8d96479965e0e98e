"""Axes, scales and lines of charts, as SVG with the colours of the style sheet."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from deepshare.study.report.markup import Node, node

WIDTH = 920.0
Point = tuple[float, float]


@dataclass(frozen=True)
class AxisScale:
    """Map from values to coordinates.

    Attributes:
        low: Smallest value.
        high: Largest value.
        start: Coordinate of the smallest value.
        end: Coordinate of the largest value.
        logarithmic: Whether the scale is logarithmic.
        spacing: Approximate distance between ticks.
        whole: Whether ticks are integers.
    """

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False
    spacing: float = 45.0
    whole: bool = False

    def at(self, value: float) -> float:
        """Coordinate of a value."""
        low, high, value = (math.log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Round values within the range."""
        count = max(2.0, abs(self.end - self.start) / self.spacing)
        if self.logarithmic:
            return _decades(self.low, self.high)
        return _steps(self.low, self.high, count, least=1.0 if self.whole else 0.0)


def _steps(low: float, high: float, count: float, least: float) -> list[float]:
    rough = max(0.75 * (high - low) / count, least)
    power: float = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    inside = [value for value in fine if low * 0.999 <= value <= high * 1.001]
    coarse = [value for value in inside if f"{value:e}".startswith("1")]
    return coarse if len(inside) > 8 else inside


def spread(values: Iterable[float], *, least: float, margin: float = 0.08) -> tuple[float, float]:
    """Range of values with a margin, at least `least` wide."""
    known = list(values)
    low, high = min(known), max(known)
    room = max((high - low) * margin, (least - (high - low)) / 2)
    return low - room, high + room


def wide(values: Iterable[float], factor: float = 1.4) -> tuple[float, float]:
    """Range of the positive values for a logarithmic scale, with a factor as margin."""
    known = [value for value in values if value > 0]
    return min(known) / factor, max(known) * factor


@dataclass(frozen=True)
class Panel:
    """Area of a chart with its two scales; y points upwards."""

    x: AxisScale
    y: AxisScale

    def place(self, point: Point) -> Point:
        """Coordinates of a point."""
        return self.x.at(point[0]), self.y.at(point[1])

    def grid(self, x_text: Callable[[float], str] | None, y_text: Callable[[float], str], name: str) -> Node:
        """Draw labelled lines at the y ticks, labels at the x ticks if `x_text` is given, and the name of the chart."""
        drawn = node("g", class_="grid")
        for value in self.y.ticks:
            y = self.y.at(value)
            drawn.append(node("line", x1=self.x.start, x2=self.x.end, y1=y, y2=y))
            drawn.append(text(y_text(value), self.x.start - 8, y + 4, "end"))
        for value in self.x.ticks if x_text else []:
            x = self.x.at(value)
            drawn.append(node("line", x1=x, x2=x, y1=self.y.start, y2=self.y.start + 4))
            drawn.append(text(x_text(value) if x_text else "", x, self.y.start + 18, "middle"))
        drawn.append(text(name, self.x.start, self.y.end - 9, "start", "name"))
        return drawn

    def line(self, points: Sequence[Point], kind: str) -> Node:
        """Draw a line through points; a single point becomes a dot."""
        places = [self.place(point) for point in points]
        if len(places) == 1:
            return node("circle", cx=places[0][0], cy=places[0][1], r=2.5, class_=f"dot {kind}")
        return node("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places), class_=f"line {kind}")


def text(words: str, x: float, y: float, anchor: str = "start", kind: str | None = None) -> Node:
    """Create a text element."""
    return node("text", words, x=x, y=y, text_anchor=anchor, class_=kind)


def svg(height: float, label: str, *children: Node, width: float = WIDTH, **attributes: object) -> Node:
    """Create a drawing that fills the width of the page; the label is for screen readers."""
    view = f"0 0 {width:g} {height:g}"
    return node("svg", *children, viewBox=view, role="img", aria_label=label, **attributes)


def framed(drawing: Node) -> Node:
    """Wrap a drawing so that it scrolls sideways on a narrow screen instead of shrinking its text."""
    return node("div", drawing, class_="chart")


def dots(places: Iterable[Point], kind: str) -> Node | None:
    """Draw many dots as one path, which keeps the page small; None if there are none."""
    strokes = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)
    return node("path", d=strokes, class_=kind) if strokes else None


def legend(*entries: tuple[str, str]) -> Node:
    """Create a legend from pairs of a style sheet class and a label."""
    marks = (node("span", node("i", class_=f"key {kind}"), words) for kind, words in entries)
    return node("p", *marks, class_="legend")
