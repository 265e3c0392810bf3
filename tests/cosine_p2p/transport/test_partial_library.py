"""A library imported in part looks whole to whoever asks for more, and its parts are the same either way."""

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cosine_p2p.transport.partial_library import WaitingPackage, imported_in_part
from tests.thoroughness import quick_first

LIBRARY = "partly"
SOURCES = {
    "__init__.py": """
from partly.costly import weigh
from partly.parts import Small, VERSION
__version__ = VERSION
def whole():
    return Small, weigh
""",
    "costly.py": "from partly.parts.small import Small\nWEIGHT = 7\ndef weigh(): return WEIGHT\n",
    "parts/__init__.py": """
from .small import Small
from .small import CONSTANT as VERSION
from . import other
from partly import costly
LEVEL = 3
""",
    "parts/small.py": "CONSTANT = '1.2'\nclass Small: pass\n",
    "parts/other.py": "from partly.parts import Small\n",
}


@pytest.fixture(autouse=True)
def _library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, source in SOURCES.items():
        file = tmp_path / LIBRARY / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == LIBRARY]:
        del sys.modules[name]


def loaded() -> set[str]:
    """The library's modules whose code has run."""
    modules = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == LIBRARY}
    return {name for name, module in modules.items() if not isinstance(module, WaitingPackage)}


def a_part() -> Any:
    with imported_in_part(LIBRARY):
        return import_module("partly.parts.small").Small


def test_only_what_is_asked_for_runs() -> None:
    small = a_part()
    assert loaded() == {"partly.parts.small"}
    assert small.__module__ == "partly.parts.small"


def test_a_module_that_is_left_out_is_what_it_is_for_whoever_asks_afterwards() -> None:
    with imported_in_part(LIBRARY, without=["partly.parts.small"]):
        other = import_module("partly.parts.other")
        assert loaded() == {"partly.parts.other", "partly.parts.small"}
        assert other.Small.__module__ == "partly.parts.small"
        assert not hasattr(other.Small, "weight")
    assert loaded() == {"partly.parts.other"}
    small = import_module("partly.parts.small")
    assert small.CONSTANT == "1.2" and small.Small is not other.Small
    library = import_module(LIBRARY)
    assert library.whole()[0] is small.Small


def test_a_library_imported_before_is_left_alone() -> None:
    library = import_module(LIBRARY)
    assert a_part() is library.Small
    assert type(library) is type(library.parts) is ModuleType


USES = {
    "hivemind": """
import cosine_p2p.transport.full.library, hivemind
from hivemind.averaging import DecentralizedAverager
assert hivemind.DHT and hivemind.Optimizer and hivemind.__version__
""",
    "libp2p": """
import cosine_p2p.transport.light.library
from libp2p.kad_dht.kad_dht import KadDHT
import libp2p
from libp2p.transport.quic.stream import QUICStream
from libp2p.transport.quic.connection import QUICConnection
assert QUICStream.write and QUICConnection.open_stream
assert libp2p.new_host and libp2p.peer.id.ID and libp2p.__version__
""",
}


@pytest.mark.parametrize("library", quick_first(["libp2p", "hivemind"]))
def test_a_programs_own_use_of_a_library_finds_everything(library: str) -> None:
    if find_spec(library) is None:
        pytest.skip(f"needs {library}")
    done = subprocess.run([sys.executable, "-c", USES[library]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
