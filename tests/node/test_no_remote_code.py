"""Models of strangers are data: no call that loads one lets it bring code."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "cosine_p2p", "node", "tui", "lab")
LOADING = frozenset({"from_pretrained", "from_config", "pipeline"})
NAME = "trust_remote_code"


def calls() -> Iterator[tuple[str, ast.Call]]:
    for path in (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
            if isinstance(node, ast.Call):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def given(call: ast.Call) -> object:
    """The literal value of the keyword, None if it is absent, the expression if it is no literal."""
    for keyword in call.keywords:
        if keyword.arg == NAME:
            return keyword.value.value if isinstance(keyword.value, ast.Constant) else keyword.value
    return None


def is_automatic(call: ast.Call) -> bool:
    """True for a call that loads by a class of transformers which looks for code; without the keyword it asks."""
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in LOADING:
        return False
    return isinstance(function.value, ast.Name) and function.value.id.startswith("Auto")


def test_remote_code_is_never_trusted() -> None:
    found = [(place, given(call)) for place, call in calls() if given(call) is not None]
    assert found
    assert [place for place, value in found if value is not False] == []


def test_whoever_would_look_for_code_is_told_not_to() -> None:
    found = [(place, given(call)) for place, call in calls() if is_automatic(call)]
    assert found
    assert [place for place, value in found if value is not False] == []
