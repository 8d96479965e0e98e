"""A parsed page, to ask it what it shows."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "hr", "link", "input"}


@dataclass
class Element:
    """One element with its attributes, and its children and texts in their order."""

    tag: str
    attributes: dict[str, str | None]
    content: "list[Element | str]" = field(default_factory=list)

    def __iter__(self) -> "Iterator[Element]":
        yield self
        for part in self.content:
            if isinstance(part, Element):
                yield from part

    @property
    def classes(self) -> list[str]:
        return (self.attributes.get("class") or "").split()

    @property
    def text(self) -> str:
        parts = (part.text if isinstance(part, Element) else part for part in self.content)
        return " ".join(" ".join(parts).split())

    def find(self, tag: str, kind: str | None = None) -> "list[Element]":
        return [one for one in self if one.tag == tag and (kind is None or kind in one.classes)]

    def part(self, title: str) -> "Element":
        """The section with a heading."""
        return next(one for one in self.find("section") if one.find("h3")[0].text == title)

    def rows(self) -> list[list[str]]:
        """The cells of the body of the first table."""
        body = self.find("tbody")[0]
        return [[cell.text for cell in row.find("td")] for row in body.find("tr")]


class Parser(HTMLParser):
    """Builds the tree; what is not closed in its order is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(tag, dict(attrs))
        self.open[-1].content.append(made)
        if tag not in VOID:
            self.open.append(made)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].content.append(data)


def parse(page: str) -> Element:
    """Parse a page."""
    parser = Parser()
    parser.feed(page)
    parser.close()
    assert len(parser.open) == 1
    return parser.open[0]
