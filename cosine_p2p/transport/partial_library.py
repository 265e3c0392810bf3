"""Import a part of a library without running the `__init__` of its packages.

hivemind's packages import torch, and py-libp2p's dozens of libraries. While our part is imported, the `__init__` of
a package does not run, and its names are imported from their origin. Later imports by a program run it. Modules
imported only for the names of types are replaced by empty classes. Each library has its own protobuf pool, since
both register `crypto.proto`.
"""

import ast
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, resolve_name
from types import ModuleType
from typing import Any

from google.protobuf import descriptor_pool


@contextmanager
def imported_in_part(name: str, *, without: Collection[str] = ()) -> Iterator[None]:
    """Import a library in part, `without` some modules, unless it is already imported."""
    if name in sys.modules:
        yield
        return
    library = PartialLibrary(name, without)
    sys.meta_path.insert(0, library)
    try:
        yield
    finally:
        library.is_partial = False
        for left_out in without:
            # Later imports get the real module.
            package, _, child = left_out.rpartition(".")
            sys.modules.pop(left_out, None)
            vars(sys.modules.get(package, library)).pop(child, None)


class PartialLibrary:
    """A finder of one library's modules. It stays in `sys.meta_path`, since later modules share the protobufs."""

    def __init__(self, name: str, without: Collection[str] = ()) -> None:
        self.is_partial = True
        self._name = name
        self._without = frozenset(without)
        self._pool = descriptor_pool.DescriptorPool()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self._name:
            return None
        if not self.is_partial:
            self.complete()
        elif fullname in self._without:
            return ModuleSpec(fullname, _StandIns())
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        run = loader.exec_module

        def run_apart(module: ModuleType) -> None:
            with self._apart():
                run(module)

        if fullname in sys.modules:
            # `complete` has just imported it; Python uses the spec of the imported module.
            imported: Any = sys.modules[fullname]
            for each in (loader, imported.__spec__.loader):
                each.create_module = lambda _: imported
                each.exec_module = lambda _: None
        elif self.is_partial and spec.submodule_search_locations is not None:
            loader.create_module = lambda _: WaitingPackage(fullname, self, run_apart)
            loader.exec_module = lambda _: None
        else:
            loader.exec_module = run_apart
        return spec

    def complete(self) -> None:
        """Run the `__init__` of the library itself."""
        whole = sys.modules.get(self._name)
        if isinstance(whole, WaitingPackage):
            whole.stop_waiting()

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Register protobufs in the library's own pool, and silence its warnings."""
        default_pool = descriptor_pool.Default
        descriptor_pool.Default = lambda: self._pool
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            descriptor_pool.Default = default_pool


class _StandIns(Loader):
    """Loads a module in which every name is an empty class."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        vars(module)["__getattr__"] = lambda name: type(name, (), {"__module__": spec.name})
        return module

    def exec_module(self, module: ModuleType) -> None:
        return


class WaitingPackage(ModuleType):
    """A package of a library whose `__init__`, `run`, has not run."""

    def __init__(self, name: str, library: PartialLibrary, run: Callable[[ModuleType], None]) -> None:
        super().__init__(name)
        self._library = library
        self._run = run

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name not in self._names:
            raise AttributeError(name)
        if self._library.is_partial:
            origin = self._names.get(name)
            if origin is not None:
                return import_name(origin)
            if name not in self._names and find_spec(f"{self.__name__}.{name}") is not None:
                return import_module(f"{self.__name__}.{name}")
        else:
            self._library.complete()
        # `complete` may already have run this package's `__init__`.
        WaitingPackage.stop_waiting(self)
        return getattr(self, name)

    def stop_waiting(self) -> None:
        if isinstance(self, WaitingPackage):
            run = self._run
            for name in ("_library", "_run", "_names"):
                vars(self).pop(name, None)
            object.__setattr__(self, "__class__", ModuleType)
            run(self)

    @cached_property
    def _names(self) -> dict[str, str | None]:
        assert self.__spec__ is not None
        loader: Any = self.__spec__.loader
        return names_bound(loader.get_source(self.__name__) or "", package=self.__name__)


def import_name(path: str) -> Any:
    """Import the module, or the member of a module, with a dotted path."""
    module, _, name = path.rpartition(".")
    if isinstance(sys.modules.get(module), WaitingPackage) and find_spec(path) is not None:
        return import_module(path)
    return getattr(import_module(module), name)


def names_bound(source: str, *, package: str) -> dict[str, str | None]:
    """The names that a package's `__init__` binds, with the dotted paths of those that are only imported, once."""
    names: dict[str, str | None] = {}
    for statement in ast.parse(source).body:
        origins = {}
        if isinstance(statement, ast.ImportFrom):
            module = resolve_name("." * statement.level + (statement.module or ""), package)
            origins = {alias.asname or alias.name: f"{module}.{alias.name}" for alias in statement.names}
        for name in _bound_by(statement):
            names[name] = None if name in names else origins.get(name)
    return names


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
