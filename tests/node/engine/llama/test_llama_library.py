import ctypes.util
import logging
from pathlib import Path
from typing import Any

import pytest

from cosine_node.engine.llama import library as module
from cosine_node.engine.llama.library import LlamaLibrary, llama_library
from cosine_protocol.errors import UsageError


def test_a_wheel_of_another_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "version", lambda _: "2031.1.1")
    with pytest.raises(
        UsageError, match=r"xllamacpp 2031\.1\.1 holds a llama\.cpp that this program does not know"
    ):
        llama_library.__wrapped__()


def test_without_the_wheel_a_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACKAGE", "no-such-package")
    with pytest.raises(UsageError, match=r"--engine llama needs the package no-such-package: pip install"):
        llama_library.__wrapped__()
    assert not module.is_installed()


def test_a_library_that_is_laid_out_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(llama_library().c._name)
    monkeypatch.setitem(module.CONTEXT_DEFAULTS, "n_ctx", 4711)
    with pytest.raises(UsageError, match="has other parameters than this program knows"):
        LlamaLibrary(path)


@pytest.mark.parametrize("content", [None, b"not a library"])
def test_what_is_no_library_is_refused(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "llama.so").write_bytes(content)
    with pytest.raises(UsageError, match=r"llama\.cpp in llama\.so cannot be used"):
        LlamaLibrary(tmp_path / "llama.so")


def test_a_library_without_its_functions_is_refused() -> None:
    path = Path(ctypes.util.find_library("c") or "libc.so.6")
    with pytest.raises(UsageError, match=r"cannot be used .*llama"):
        LlamaLibrary(path)


def test_its_lines_are_logged_and_its_errors_kept(caplog: Any) -> None:
    library = llama_library()
    library.errors.clear()
    with caplog.at_level(logging.DEBUG, logger=module.LOG.name):
        for level, text in [(2, b"a fact\n"), (5, b"."), (1, b"a detail\n"), (4, b"one: a fault\n")]:
            library._take_line(level, text, None)
        for number in range(20):
            library._take_line(4, f"fault {number}".encode(), None)
    assert [record.levelname for record in caplog.records[:2]] == ["DEBUG", "INFO"]
    assert caplog.records[0].getMessage() == "a fact"
    assert library.errors == [f"fault {number}" for number in range(12, 20)]
    library.errors.clear()


def test_every_function_is_there() -> None:
    assert all(hasattr(llama_library().c, name) for name in module.FUNCTIONS)
