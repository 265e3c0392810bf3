"""The plan of the house holds: rooms import each other in one direction, are small, and what decides is pure."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
HOMES: Final = {
    "cosine_protocol": "protocol",
    "cosine_p2p": "",
    "cosine_terminal": "node",
    "cosine_engine": "node",
    "cosine_gateway": "node",
    "cosine_cli": "node",
    "cosine_node": "node",
    "cosine_train": "node/train",
    "cosine_tui": "tui",
    "cosine_lab": "lab",
}
"""The packages, each above all that it imports."""
PACKAGES: Final = {package: ROOT / home / package for package, home in HOMES.items()}
FORBIDDEN: Final = {
    "cosine_protocol": {"asyncio", "torch", "hivemind", "libp2p", "socket", "time", "random", "os"},
    "cosine_p2p": {"torch", "transformers", "llguidance"},
    "cosine_engine": {"hivemind", "libp2p", "starlette", "cosine_p2p.transport", "cosine_p2p.session"},
    "cosine_gateway": {"cosine_engine", "torch", "transformers", "hivemind", "libp2p"},
    "cosine_cli": {"cosine_engine", "torch", "transformers", "hivemind", "libp2p"},
    "cosine_tui": {"cosine_cli", "cosine_engine", "cosine_gateway", "cosine_node", "cosine_train"},
}
"""What a package may not import besides packages above it: I/O in the protocol, machine learning in the library,
networks in the engine, nodes in clients."""

MAX_MODULES: Final = 18
"""What a reader sees at a glance in a folder's listing."""
MAX_LINES: Final = 60
"""Of a function besides its docstring: what a reader sees at a glance on a screen."""

MAX_PARAMETERS: Final = 8
"""Of a function besides `self`: more are values that deserve a name."""
WIDE: Final = {
    # Commands, whose parameters are their options.
    "lab/cosine_lab/commands/bench.py:here",
    "lab/cosine_lab/commands/simulate.py:simulate",
    "node/cosine_node/cli/plan.py:plan",
    "tui/cosine_tui/cli.py:monitor",
    # The public interface.
    "cosine_p2p/client.py:__init__",
    "cosine_p2p/network.py:joining",
    # A signature of transformers, and kernels that numba compiles.
    "node/cosine_engine/forward/attention.py:packed_attention",
    "node/cosine_engine/kernels/tiles.py:run",
    "node/cosine_engine/kernels/tiles.py:add_tile",
}
"""Functions that may have more."""

MACHINE_LEARNING: Final = frozenset({"torch", "transformers", "safetensors"})
OF_TORCH: Final = tuple(
    ROOT / "node" / place
    for place in (
        "cosine_engine/torch",
        "cosine_engine/compiled",
        "cosine_engine/kernels",
        "cosine_engine/forward",
        "cosine_engine/blocks",
        "cosine_engine/eagle",
        "cosine_engine/vllm/child.py",
        "cosine_engine/models/tokenizer_worker.py",
        "cosine_node/stages",
    )
)
"""Where the node runs models."""

EFFECTS: Final = frozenset(
    {"asyncio", "logging", "random", "socket", "subprocess", "threading", "time", "trio"}
    | {"hivemind", "libp2p", "torch", "transformers"}
)
PURE: Final = (
    "cosine_p2p/dht/cell_walk.py",
    "cosine_p2p/dht/postings.py",
    "cosine_p2p/directory/selection.py",
    "cosine_p2p/strategy",
    "cosine_p2p/text/detokenizer.py",
    "node/cosine_node/drafter/draft_tree.py",
    "node/cosine_node/verifier/admission.py",
    "node/cosine_node/verifier/request.py",
    "node/cosine_node/verifier/scheduler.py",
)
"""Decisions whose purity the documentation promises; modules whose docstring says "Pure" are held to it too."""

HIVEMIND_LIBRARY: Final = PACKAGES["cosine_p2p"] / "transport" / "full" / "library.py"
"""The one module that is hivemind's; nothing imports it before a transport of that kind is asked for."""


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


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _imports_of(path: Path, node: ast.AST, *, is_lazy: bool = False) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(path, node.lineno, alias.name, is_lazy) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        yield from (Import(path, node.lineno, f"{node.module}.{alias.name}", is_lazy) for alias in node.names)
    is_lazy = is_lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for child in ast.iter_child_nodes(node):
        # Expressions hold no imports.
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _imports_of(path, child, is_lazy=is_lazy)


def _modules_in(place: Path) -> list[Path]:
    return [place] if place.suffix == ".py" else sorted(place.rglob("*.py"))


@cache
def _imports_of_module(path: Path) -> tuple[Import, ...]:
    return tuple(_imports_of(path, _parsed(path)))


def _imports_in(place: Path) -> Iterator[Import]:
    for path in _modules_in(place):
        yield from _imports_of_module(path)


def _offending(place: Path, forbidden: Set[str]) -> list[str]:
    prefixes = tuple(f"{name}." for name in forbidden)
    return [str(found) for found in _imports_in(place) if f"{found.name}.".startswith(prefixes)]


def _room_of(name: str) -> str | None:
    """The folder of ours that a dotted name is in, as a path below the root; None for other people's."""
    package, *parts = name.split(".")
    if package not in PACKAGES:
        return None
    place = PACKAGES[package]
    for part in parts:
        if not (place / part).is_dir():
            break
        place /= part
    return place.relative_to(ROOT).as_posix()


@cache
def rooms() -> Mapping[str, set[str]]:
    """Every folder of the product and the laboratory, and the other folders that its modules import from."""
    graph: dict[str, set[str]] = {}
    for place in PACKAGES.values():
        for found in _imports_in(place):
            here, there = found.path.parent.relative_to(ROOT).as_posix(), _room_of(found.name)
            graph.setdefault(here, set())
            if there is not None and there != here:
                graph[here].add(there)
    return graph


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_in_one_direction(package: str) -> None:
    names = list(PACKAGES)
    above = set(names[names.index(package) + 1 :])
    assert _offending(PACKAGES[package], above | FORBIDDEN.get(package, set())) == []


def _whole(room: str) -> str:
    """A room with the folders in it, as the path of the outermost one in its package."""
    place = next(place for place in PACKAGES.values() if (ROOT / room).is_relative_to(place))
    inner = (ROOT / room).relative_to(place).parts[:1]
    return place.joinpath(*inner).relative_to(ROOT).as_posix()


@pytest.mark.parametrize("name_of", [str, _whole], ids=["folder by folder", "with the folders in them"])
def test_rooms_import_each_other_without_circles(name_of: Callable[[str], str]) -> None:
    graph: dict[str, set[str]] = {}
    for here, there in rooms().items():
        graph.setdefault(name_of(here), set()).update(map(name_of, there))
    try:
        TopologicalSorter({here: there - {here} for here, there in graph.items()}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_a_room_is_seen_at_a_glance() -> None:
    sizes = {
        room: len([path for path in (ROOT / room).glob("*.py") if path.stem != "__init__"]) for room in rooms()
    }
    assert {room: size for room, size in sizes.items() if size > MAX_MODULES} == {}


def test_a_room_says_what_it_is_for() -> None:
    assert [room for room in rooms() if not ast.get_docstring(_parsed(ROOT / room / "__init__.py"))] == []


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "cosine_lab"])
def test_a_function_is_seen_at_a_glance(package: str) -> None:
    long = {}
    for path in _modules_in(PACKAGES[package]):
        for node in ast.walk(_parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = node.body[0] if ast.get_docstring(node) else None
                told = 0 if docstring is None else (docstring.end_lineno or 0) - docstring.lineno + 1
                lines = (node.end_lineno or 0) - node.lineno + 1 - told
                if lines > MAX_LINES:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = lines
    assert long == {}


def test_a_function_has_few_parameters() -> None:
    wide = set()
    for path in (path for place in PACKAGES.values() for path in _modules_in(place)):
        for node in ast.walk(_parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                if sum(each.arg not in ("self", "cls") for each in named) > MAX_PARAMETERS:
                    wide.add(f"{path.relative_to(ROOT)}:{node.name}")
    assert wide == WIDE


def test_no_two_classes_have_one_name() -> None:
    homes: dict[str, list[str]] = {}
    for path in (path for place in PACKAGES.values() for path in _modules_in(place)):
        for node in _parsed(path).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_hivemind_is_imported_lazily() -> None:
    found = _imports_in(PACKAGES["cosine_p2p"])
    assert [
        str(one) for one in found if one.top == "hivemind" and not one.is_lazy and one.path != HIVEMIND_LIBRARY
    ] == []


def test_the_library_and_the_command_line_start_without_what_is_heavy() -> None:
    heavy = "{'torch', 'transformers', 'hivemind', 'llguidance', 'numpy', 'textual', 'starlette'}"
    code = f"import cosine_p2p, cosine_cli.program, sys; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_torch_stays_where_models_run() -> None:
    outside = [
        str(found)
        for package in ("cosine_terminal", "cosine_engine", "cosine_gateway", "cosine_node")
        for found in _imports_in(PACKAGES[package])
        if found.top in MACHINE_LEARNING and not any(found.path.is_relative_to(place) for place in OF_TORCH)
    ]
    assert outside == []


def _calls_itself_pure(path: Path) -> bool:
    """True if the docstring of a module, or of a package of it, says "Pure"."""
    packages = (folder / "__init__.py" for folder in path.parents if ROOT in folder.parents)
    docstrings = (ast.get_docstring(_parsed(file)) or "" for file in (path, *packages) if file.exists())
    return any(re.search(r"\bPure\b", docstring) for docstring in docstrings)


def test_decisions_are_pure() -> None:
    promised = {path for place in PURE for path in _modules_in(ROOT / place)}
    said = {path for place in PACKAGES.values() for path in _modules_in(place) if _calls_itself_pure(path)}
    assert [found for path in sorted(promised | said) for found in _offending(path, EFFECTS)] == []
