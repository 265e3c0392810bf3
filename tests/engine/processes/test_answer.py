"""Functions in child processes: answers, failures and timeouts."""

from pathlib import Path

import pytest

from cosine_engine.processes.answer import answer_of
from cosine_protocol.errors import UsageError

CODE = """
import os
from cosine_protocol.errors import UsageError

def told(*given):
    print("first, without an end", end="")
    return [*given, os.environ.get("MARK")]

def refuse():
    raise UsageError("It is no file.")

def fail():
    raise OSError

def leave():
    print("no JSON", flush=True)
    os._exit(0)
"""


@pytest.fixture(autouse=True)
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "asked.py").write_text(CODE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_a_function_is_told_something_and_its_result_or_its_refusal_comes_back() -> None:
    answer = answer_of("asked:told", [1, "ü"], None, timeout_s=60.0, environment={"MARK": "set"})
    assert answer == [[1, "ü"], None, "set"]
    with pytest.raises(UsageError, match=r"^It is no file\.$"):
        answer_of("asked:refuse", timeout_s=60.0)


@pytest.mark.parametrize("function", ["asked:fail", "asked:leave", "asked:nothing", "no.such.module:told"])
def test_a_function_without_an_answer_is_told_from_one_that_is_late(function: str) -> None:
    with pytest.raises(ValueError):
        answer_of(function, timeout_s=60.0)
    with pytest.raises(TimeoutError):
        answer_of(function, timeout_s=0.0)
