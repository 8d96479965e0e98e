"""HTML and SVG as trees, so that every name is escaped and every tag is closed."""

from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

Node = ElementTree.Element
Child = Node | str | None


def node(tag: str, *children: Child, **attributes: object) -> Node:
    """Make an element; `class_` and `stroke_width` stand for class and stroke-width, None is left out.

    >>> to_text(node("p", "1 < 2", node("b", "!"), " so", class_="note"))
    '<p class="note">1 &lt; 2<b>!</b> so</p>'
    """
    named = {key.rstrip("_").replace("_", "-"): _value(value) for key, value in attributes.items() if value is not None}
    return grow(ElementTree.Element(tag, named), *children)


def grow(parent: Node, *children: Child) -> Node:
    """Append children to an element, which is given back."""
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
    """Write an element as HTML."""
    return ElementTree.tostring(root, encoding="unicode", method="html")


def table(header: Sequence[Child], rows: Iterable[Sequence[Child]], align: str, **attributes: object) -> Node:
    """Make a table.

    Args:
        header: Heads of the columns.
        rows: Cells.
        align: For each column "<" for text or ">" for numbers.
        attributes: Of the table.
    """
    classes = ["number" if side == ">" else None for side in align]
    head = node("tr", *(node("th", cell, class_=kind) for cell, kind in zip(header, classes, strict=True)))
    body = [node("tr", *(node("td", c, class_=k) for c, k in zip(row, classes, strict=True))) for row in rows]
    made = node("table", node("thead", head), node("tbody", *body), **attributes)
    return node("div", made, class_="wide")


def section(title: str, about: str, *children: Child, **attributes: object) -> Node:
    """A part of the page with a heading and a line that says how to read it."""
    return node("section", node("h3", title), node("p", about, class_="about"), *children, **attributes)


def _value(value: object) -> str:
    return f"{round(value, 2):g}" if isinstance(value, float) else str(value)
