"""Import a part of a library without running the `__init__` of its packages.

hivemind's packages import torch, and py-libp2p's dozens of libraries. While our part is imported, a package stays
empty, and imports each of its names from the name's origin on first use. A program may use the whole library
afterwards: the `__init__` of a package runs for a name that it does not only import.

Each library has its own protobuf pool, since both register `crypto.proto`.
"""

import ast
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, resolve_name
from types import ModuleType
from typing import Any

from google.protobuf import descriptor_pool

_Run = Callable[[ModuleType], None]


@contextmanager
def imported_in_part(name: str, *, without: Collection[str] = ()) -> Iterator[None]:
    """Import a library in part, unless it is already imported.

    The modules in `without` are replaced by ones with empty classes: they are imported only for names of types.
    """
    if name in sys.modules:
        yield
        return
    finder = _PartFinder(name, without)
    sys.meta_path.insert(0, finder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        finder.is_partial = False
        for left_out in without:
            # Later imports get the real module.
            package, _, child = left_out.rpartition(".")
            sys.modules.pop(left_out, None)
            vars(sys.modules.get(package, finder)).pop(child, None)


class _PartFinder:
    """A finder of one library's modules. It stays in `sys.meta_path`, since later modules share the protobufs."""

    def __init__(self, name: str, without: Collection[str]) -> None:
        self.is_partial = True
        self._name = name
        self._without = without
        self._pool = descriptor_pool.DescriptorPool()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self._name:
            return None
        if self.is_partial and fullname in self._without:
            return ModuleSpec(fullname, _StandIns())
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            if fullname.endswith("_pb2"):
                loader.exec_module = partial(self._run_with_pool, loader.exec_module)
            elif self.is_partial and spec.submodule_search_locations is not None:
                loader.exec_module = partial(_make_lazy, loader.exec_module)
        return spec

    def _run_with_pool(self, run: _Run, module: ModuleType) -> None:
        default_pool = descriptor_pool.Default
        descriptor_pool.Default = lambda: self._pool
        try:
            run(module)
        finally:
            descriptor_pool.Default = default_pool


class _StandIns(Loader):
    """Loads a module in which every name is an empty class."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__getattr__"] = lambda name: type(name, (), {"__module__": module.__name__})


def _make_lazy(run: _Run, package: ModuleType) -> None:
    """Let a package import its names on first use, or `run` its `__init__` for others (PEP 562)."""
    assert package.__spec__ is not None
    loader: Any = package.__spec__.loader
    source = loader.get_source(package.__name__) or ""
    origins = origins_in(source, package=package.__name__)

    def get(name: str) -> Any:
        if name.startswith("__") and name != "__all__" and name not in source:
            raise AttributeError(name)
        if name in origins:
            module, _, member = origins[name].rpartition(".")
            value = getattr(import_module(module), member)
        elif name != "__all__" and find_spec(f"{package.__name__}.{name}") is not None:
            value = import_module(f"{package.__name__}.{name}")
        else:
            vars(package).pop("__getattr__", None)
            run(package)
            return getattr(package, name)
        setattr(package, name, value)
        return value

    vars(package)["__getattr__"] = get


def origins_in(source: str, *, package: str) -> dict[str, str]:
    """The dotted paths of the names that a package's `__init__` imports from other modules, once."""
    origins: dict[str, list[str]] = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.ImportFrom):
            module = resolve_name("." * statement.level + (statement.module or ""), package)
            for alias in statement.names:
                origins.setdefault(alias.asname or alias.name, []).append(f"{module}.{alias.name}")
    return {name: found[0] for name, found in origins.items() if len(found) == 1}
