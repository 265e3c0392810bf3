"""Links between pages, and from pages to files, lead somewhere."""

from pathlib import Path
from typing import Final

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, anchors_of, links_of

LINKING: Final = (*PAGES, ROOT / "CHANGELOG.md", ROOT / "lab" / "cosine_lab" / "training" / "README.md")


def broken(page: Path, link: str) -> bool:
    if link.startswith(("https://", "mailto:")):
        return False
    path, _, anchor = link.partition("#")
    place = page if not path else (page.parent / path).resolve()
    return not place.exists() or (bool(anchor) and anchor not in anchors_of(place))


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert [link for link in links_of(page) if broken(page, link)] == []


def test_a_wrong_link_is_found() -> None:
    assert broken(DOCS / "index.md", "no-such-page.md")
    assert broken(DOCS / "index.md", "join.md#no-such-heading")
    assert not broken(DOCS / "index.md", "join.md#with-a-gpu")
    assert broken(DOCS / "index.md", "http://example.org")


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
