"""docs/promises.toml matches docs/security.md, and its tests exist."""

import re
import tomllib
from typing import Final

from tests.docs.pages import DOCS, ROOT

PROMISES: Final = tomllib.loads((DOCS / "promises.toml").read_text("utf-8"))["promise"]
PAGE: Final = (DOCS / "security.md").read_text("utf-8")


def test_the_page_makes_these_promises_and_no_others() -> None:
    section = PAGE[PAGE.index("## Promises") : PAGE.index("## What audits find")]
    made = [" ".join(found.split()) for found in re.findall(r"^- (.*(?:\n  .*)*)", section, re.MULTILINE)]
    assert made == [promise["says"] for promise in PROMISES]


def test_every_promise_is_held_by_tests_that_exist() -> None:
    assert [promise["says"] for promise in PROMISES if not promise.keys() & {"pure", "swarm"}] == []
    named = {path for promise in PROMISES for kind in ("pure", "swarm") for path in promise.get(kind, ())}
    assert sorted(path for path in named if not (ROOT / path).is_file()) == []
