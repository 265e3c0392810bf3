"""The documentation site builds without warnings, and loads nothing from other servers."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.docs.pages import ROOT

pytestmark = pytest.mark.thorough

# What a browser fetches by itself; a link that somebody follows is none.
FETCHED: Final = re.compile(
    r"""<(?:script|img|iframe)[^>]*\bsrc=["']?(?:https?:)?//|<link[^>]*\bhref=["']?https?://"""
)
IMPORTED: Final = re.compile(r"""@import|url\(["']?(?:https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_it_has_every_page_and_a_search_index(site: Path) -> None:
    built = {str(page.relative_to(site)) for page in site.rglob("*.html")}
    assert {"index.html", "quickstart.html", "comparison.html", "changelog.html", "decisions/index.html"} <= built
    assert "speculation account" in (site / "search" / "search_index.json").read_text()


def test_it_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = {str(page.relative_to(site)) for page in site.rglob("*.html") if FETCHED.search(page.read_text())}
    styles = {str(style.relative_to(site)) for style in site.rglob("*.css") if IMPORTED.search(style.read_text())}
    assert (pages, styles) == (set(), set())
