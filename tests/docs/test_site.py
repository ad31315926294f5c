"""The built site: nothing is missing, nothing comes from elsewhere, and every link inside it has an end."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from documents import ROOT

from kvref_conformance.checks import all_checks
from kvref_conformance.museum import all_exhibits
from kvref_conformance.requirements import AREAS, load_requirements


class Page(HTMLParser):
    """The anchors and the references of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Gather ids, links, and what a browser would fetch by itself."""
        given = {name: value or "" for name, value in attrs}
        self.ids.add(given.get("id", ""))
        if tag == "a":
            self.links.add(given.get("href", ""))
        if tag in ("script", "img", "iframe") and "src" in given:
            self.loads.add(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon"):
            self.loads.add(given.get("href", ""))


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """Every page of the site, by its path."""
    return {str(path.relative_to(site)): Page(path) for path in sorted(site.rglob("*.html"))}


def test_every_requirement_has_an_anchor(pages: dict[str, Page]) -> None:
    """A report that names a requirement can link to it, for good."""
    spec = load_requirements()
    missing = [r.title for r in spec.values() if r.id not in pages[f"spec/{r.chapter}.html"].ids]
    assert missing == []


def test_every_check_and_every_exhibit_has_an_anchor(pages: dict[str, Page]) -> None:
    """What a requirement links to is there."""
    checks, museum = pages["evidence/checks.html"].ids, pages["evidence/museum.html"].ids
    assert [c.name for c in all_checks() if f"check-{c.name}" not in checks] == []
    assert [e.name for e in all_exhibits() if f"exhibit-{e.name}" not in museum] == []


def test_nothing_is_loaded_from_elsewhere(pages: dict[str, Page]) -> None:
    """The site can be read offline, formulas and figures included."""
    foreign = {(name, url) for name, page in pages.items() for url in page.loads if "//" in url}
    assert foreign == set()


def test_links_inside_the_site_have_an_end(site: Path, pages: dict[str, Page]) -> None:
    """Every page and every anchor that is linked to exists."""
    broken = []
    for name, page in pages.items():
        for link in page.links:
            if "//" in link or (link.startswith(("mailto:", "#")) and link == "#"):
                continue
            path, _, anchor = link.partition("#")
            target = (site / name).parent.joinpath(path).resolve() if path else site / name
            if not target.is_file():
                broken.append((name, link))
                continue
            other = pages.get(str(target.relative_to(site.resolve() if path else site)))
            if other is not None and anchor and anchor not in other.ids:
                broken.append((name, link))
    assert broken == []


def test_api_reference_has_every_module() -> None:
    """A module that nobody listed would have no page, and links to its functions none either."""
    listed = {
        name
        for path in (ROOT / "docs" / "api").glob("*.md")
        for name in re.findall(r"automodule:: (\S+)", path.read_text(encoding="utf-8"))
    }
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "kvref").rglob("*.py")
        if path.name != "__init__.py" and "cli" not in path.parts
    }
    assert modules - listed == set()


def test_matrix_has_a_row_for_every_requirement(site: Path) -> None:
    """The matrix is made from the spec, not kept beside it."""
    text = (site / "evidence" / "matrix.html").read_text(encoding="utf-8")
    assert [r for r in load_requirements() if f"#{r}" not in text] == []


def test_exhibits_are_caught_in_the_published_matrix(site: Path) -> None:
    """Each row of the kill matrix names at least one requirement that caught its exhibit."""
    text = (site / "evidence" / "kills.html").read_text(encoding="utf-8")
    body = text.partition("<tbody>")[2].partition("</tbody>")[0]
    rows = re.findall(r"<tr.*?</tr>", body, re.DOTALL)
    assert len(rows) == len(all_exhibits())
    assert [row for row in rows if not re.search(f"KV-(?:{'|'.join(AREAS)})-", row)] == []
