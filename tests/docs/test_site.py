"""The built site: every link to a file leads to one, and nothing is fetched from elsewhere."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


class Links(HTMLParser):
    """All links of a page, and those that a browser loads by itself."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.all: list[str] = []
        self.loaded: list[str] = []
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        self.all += [link for name in ("href", "src") if (link := said.get(name))]
        if (link := said.get(LOADED.get(tag, ""))) and said.get("rel") not in ("prev", "next", "canonical"):
            self.loaded.append(link)


def broken(site: Path) -> list[str]:
    """Links to files that are not there, as PAGE: LINK."""
    lost = []
    for page in site.rglob("*.html"):
        for link in Links(page).all:
            parts = urlsplit(link)
            base = site if parts.path.startswith("/") else page.parent
            target = base / unquote(parts.path).lstrip("/") if parts.path else page
            if not (parts.scheme or parts.netloc) and not target.exists():
                lost.append(f"{page.relative_to(site)}: {link}")
    return lost


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    return folder


def test_every_link_leads_to_a_file(site: Path) -> None:
    assert len(list(site.rglob("*.html"))) > 15
    assert broken(site) == []


def test_nothing_is_fetched(site: Path) -> None:
    loaded = {link for page in site.rglob("*.html") for link in Links(page).loaded}
    assert any(link.endswith(".css") for link in loaded)
    assert [link for link in loaded if urlsplit(link).scheme not in ("", "data") or urlsplit(link).netloc] == []


def test_the_search_needs_no_server(site: Path) -> None:
    assert (site / "search" / "search_index.js").stat().st_size > 10_000
    assert all("iframe-worker.js" in "".join(Links(page).loaded) for page in site.glob("*.html"))


def test_a_lost_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.html").write_text(
        '<a href="b.html#x">1</a><a href="../c%20d.html">2</a><img src="/e.png"><a href="http://x/y">3</a>'
    )
    assert broken(tmp_path) == ["in/a.html: b.html#x", "in/a.html: ../c%20d.html", "in/a.html: /e.png"]
    (tmp_path / "in" / "b.html").touch()
    (tmp_path / "c d.html").touch()
    (tmp_path / "e.png").touch()
    assert broken(tmp_path) == []
