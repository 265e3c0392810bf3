"""Links of the documentation lead to existing files and headings."""

from pathlib import Path
from typing import Final

from tests.docs.pages import DOCS, PAGES, ROOT, anchors_of, links_of

LINKING: Final = (*PAGES, ROOT / "CHANGELOG.md")


def broken(page: Path, link: str) -> bool:
    if link.startswith(("https://", "mailto:")):
        return False
    path, _, anchor = link.partition("#")
    place = page if not path else (page.parent / path).resolve()
    return not place.exists() or (bool(anchor) and anchor not in anchors_of(place))


def test_every_link_leads_somewhere() -> None:
    assert [f"{page}: {link}" for page in LINKING for link in links_of(page) if broken(page, link)] == []


def test_every_decision_is_in_their_index() -> None:
    folder = DOCS / "decisions"
    assert sorted(links_of(folder / "README.md")) == sorted(path.name for path in folder.glob("0*.md"))


def test_every_page_is_reached_from_the_first() -> None:
    reached, waiting = set(), [DOCS / "index.md", DOCS / "changelog.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            targets = [
                (page.parent / link.partition("#")[0]).resolve() for link in links_of(page) if "://" not in link
            ]
            waiting += [target for target in targets if target.suffix == ".md"]
    assert set(DOCS.rglob("*.md")) <= reached
