"""HTML and SVG as element trees, which escape all text and close all tags."""

from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

Node = ElementTree.Element
Child = Node | str | None


def node(tag: str, *children: Child, **attributes: object) -> Node:
    """Create an element; `class_` and `stroke_width` become class and stroke-width, and None is left out.

    >>> to_text(node("p", "1 < 2", node("b", "!"), " so", class_="note"))
    '<p class="note">1 &lt; 2<b>!</b> so</p>'
    """
    named = {key.rstrip("_").replace("_", "-"): _value(value) for key, value in attributes.items() if value is not None}
    return grow(ElementTree.Element(tag, named), *children)


def grow(parent: Node, *children: Child) -> Node:
    """Append children to an element, and return it."""
    for child in children:
        if isinstance(child, str):
            if len(parent):
                parent[-1].tail = (parent[-1].tail or "") + child
            else:
                parent.text = (parent.text or "") + child
        elif child is not None:
            parent.append(child)
    return parent


def to_text(root: Node) -> str:
    """Serialise an element as HTML."""
    return ElementTree.tostring(root, encoding="unicode", method="html")


def table(header: Sequence[Child], rows: Iterable[Sequence[Child]], align: str, **attributes: object) -> Node:
    """Create a table.

    Args:
        header: Column headings.
        rows: Cells of each row.
        align: "<" for text or ">" for numbers, per column.
        attributes: Attributes of the table element.
    """
    classes = ["number" if side == ">" else None for side in align]
    head = node("tr", *(node("th", cell, class_=kind) for cell, kind in zip(header, classes, strict=True)))
    body = [node("tr", *(node("td", c, class_=k) for c, k in zip(row, classes, strict=True))) for row in rows]
    made = node("table", node("thead", head), node("tbody", *body), **attributes)
    return node("div", made, class_="wide")


def section(title: str, about: str, *children: Child, **attributes: object) -> Node:
    """Create a section of the page with a heading and a line of explanation."""
    return node("section", node("h3", title), node("p", about, class_="about"), *children, **attributes)


def bar(value: float, total: float, most: float, kind: str) -> Node:
    """Create a bar with the share of a total; it is full for the largest value of its column."""
    share, length = (value / whole if whole else 0.0 for whole in (total, most))
    fill = node("span", class_=f"fill {kind}", style=f"width:{100 * length:.2f}%") if value else None
    return node("div", node("span", fill, class_="bar"), node("span", f"{share:.1%}", class_="share"), class_="barred")


def _value(value: object) -> str:
    return f"{round(value, 2):g}" if isinstance(value, float) else str(value)
