"""Files and functions named in docs/architecture.md exist."""

import ast
import re
from typing import Final

from tests.docs.pages import DOCS, ROOT

PAGE: Final = (DOCS / "architecture.md").read_text("utf-8")
STEPS: Final = [
    (found[1], re.findall(r"`([\w.]+)`", found[2]))
    for found in re.finditer(r"^\d+\. `([\w/]+\.py)`\s+((?:`[\w.]+`(?:,\s+)?)+):", PAGE, re.MULTILINE)
]


def names_of(path: str) -> set[str]:
    found = set()
    for node in ast.parse((ROOT / path).read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found


def test_the_steps_of_the_walks_name_what_there_is() -> None:
    assert len(STEPS) == len(re.findall(r"^\d+\. `", PAGE, re.MULTILINE)) >= 12
    assert [name for path, names in STEPS for name in names if name not in names_of(path)] == []
