"""The map of the project holds: who imports whom, and which modules are pure."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = {
    "cosine_protocol": ROOT / "protocol" / "cosine_protocol",
    "cosine_p2p": ROOT / "cosine_p2p",
    "cosine_node": ROOT / "node" / "cosine_node",
    "cosine_tui": ROOT / "tui" / "cosine_tui",
    "cosine_lab": ROOT / "lab" / "cosine_lab",
}
LAYERS: Final = tuple(PACKAGES)
MACHINE_LEARNING: Final = frozenset({"torch", "transformers", "safetensors"})
EFFECTS: Final = frozenset(
    {"asyncio", "logging", "random", "socket", "subprocess", "threading", "time", "trio"}
    | {"hivemind", "libp2p", "torch", "transformers"}
)
# Those that docs/architecture.md calls pure; modules and packages whose docstring has a "Pure" are found by it.
DOCUMENTED_PURE: Final = (
    "cosine_p2p/directory/cell_walk.py",
    "cosine_p2p/directory/postings.py",
    "cosine_p2p/routing",
    "cosine_p2p/directory/selection.py",
    "cosine_p2p/speculation",
    "cosine_p2p/strategies",
    "cosine_p2p/text/detokenizer.py",
    "node/cosine_node/drafter/draft_tree.py",
    "node/cosine_node/verifier/request.py",
    "node/cosine_node/verifier/admission.py",
    "node/cosine_node/verifier/request.py",
    "node/cosine_node/verifier/request.py",
    "node/cosine_node/verifier/scheduler.py",
    "node/cosine_node/verifier/pass_rows.py",
)
# The one module that is hivemind's; nothing imports it before a transport of that kind is asked for.
HIVEMIND_MODULE: Final = ROOT / "cosine_p2p" / "transport" / "hivemind_library.py"
# Where models are run, and where they are trained.
OF_TORCH: Final = tuple(
    PACKAGES["cosine_node"] / place
    for place in ("engine", "distillation", "learning/finetuning.py", "learning/vocabulary_growth.py")
)


@dataclass(frozen=True, slots=True)
class Import:
    """One name imported somewhere. `is_lazy` where a function does it."""

    path: Path
    line: int
    name: str
    is_lazy: bool

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.name}"


def modules_in(place: Path) -> list[Path]:
    """The Python files of a folder, or the file itself."""
    return [place] if place.suffix == ".py" else sorted(place.rglob("*.py"))


def imports_in(place: Path) -> list[Import]:
    """Every absolute import below a folder or in a file; relative ones stay in their package."""
    return [found for path in modules_in(place) for found in _imports_of(path, _parsed(path), is_lazy=False)]


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _imports_of(path: Path, node: ast.AST, *, is_lazy: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(path, node.lineno, alias.name, is_lazy) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        yield Import(path, node.lineno, node.module or "", is_lazy)
    is_lazy = is_lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for child in ast.iter_child_nodes(node):
        yield from _imports_of(path, child, is_lazy=is_lazy)


def _offending(place: Path, forbidden: frozenset[str]) -> list[str]:
    return [str(found) for found in imports_in(place) if found.top in forbidden]


def _source_modules() -> list[Path]:
    return [path for place in PACKAGES.values() for path in modules_in(place)]


def test_imports_are_found_wherever_they_stand() -> None:
    code = "import a.b\nif a:\n    from c import d\ndef f():\n    import e\nfrom . import g\n"
    found = _imports_of(ROOT, ast.parse(code), is_lazy=False)
    assert [(i.top, i.is_lazy) for i in found] == [("a", False), ("c", False), ("e", True)]


@pytest.mark.parametrize("package", LAYERS)
def test_imports_point_one_way(package: str) -> None:
    above = frozenset(LAYERS[LAYERS.index(package) + 1 :])
    assert _offending(PACKAGES[package], above) == []


def test_the_protocol_is_pure() -> None:
    forbidden = frozenset({"asyncio", "torch", "hivemind", "libp2p", "socket", "time", "random", "os"})
    assert _offending(PACKAGES["cosine_protocol"], forbidden) == []


def test_the_library_needs_no_machine_learning() -> None:
    assert _offending(PACKAGES["cosine_p2p"], frozenset({"torch", "transformers"})) == []


def test_hivemind_is_imported_lazily() -> None:
    eager = [
        str(found)
        for found in imports_in(PACKAGES["cosine_p2p"])
        if found.top == "hivemind" and not found.is_lazy and found.path != HIVEMIND_MODULE
    ]
    assert eager == []


def test_importing_the_library_imports_neither_torch_nor_hivemind() -> None:
    code = "import cosine_p2p, sys; print(sorted({'torch', 'transformers', 'hivemind'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_torch_stays_in_the_engine_and_the_training() -> None:
    outside = [
        str(found)
        for found in imports_in(PACKAGES["cosine_node"])
        if found.top in MACHINE_LEARNING and not any(found.path.is_relative_to(folder) for folder in OF_TORCH)
    ]
    assert outside == []


def calls_itself_pure(path: Path) -> bool:
    """True if the docstring of a module, or of a package of it, says "Pure"."""
    packages = (folder / "__init__.py" for folder in path.parents if ROOT in folder.parents)
    docstrings = (ast.get_docstring(_parsed(file)) or "" for file in (path, *packages) if file.exists())
    return any(re.search(r"\bPure\b", docstring) for docstring in docstrings)


def pure_modules() -> list[Path]:
    documented = (path for place in DOCUMENTED_PURE for path in modules_in(ROOT / place))
    return sorted({*documented, *filter(calls_itself_pure, _source_modules())})


@pytest.mark.parametrize("place", DOCUMENTED_PURE)
def test_what_the_documentation_calls_pure_exists(place: str) -> None:
    assert (ROOT / place).exists()


@pytest.mark.parametrize("path", pure_modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_decisions_are_pure(path: Path) -> None:
    assert _offending(path, EFFECTS) == []
