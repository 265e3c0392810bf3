"""What a module answers in a process of its own, and what becomes of one that gives no answer."""

from pathlib import Path

import pytest

from cosine_node.processes.answer import answer_of


def module(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> str:
    (folder / "asked.py").write_text(code, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return "asked"


def test_a_module_is_told_something_and_its_last_line_is_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import json, os, sys\nprint('first')\n"
        "print(json.dumps({'arguments': sys.argv[1:], 'told': json.load(sys.stdin), 'mark': os.environ['MARK']}))"
    )
    answer = answer_of(
        module(tmp_path, monkeypatch, code), "a", "b", told=[1, "ü"], timeout_s=60.0, environment={"MARK": "set"}
    )
    assert answer == {"arguments": ["a", "b"], "told": [1, "ü"], "mark": "set"}


@pytest.mark.parametrize("code", ["", "print('no JSON')", "print('[1]')", "raise OSError"])
def test_a_module_without_an_answer_is_told_from_one_that_is_late(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module(tmp_path, monkeypatch, code)
    with pytest.raises(ValueError):
        answer_of(name, timeout_s=60.0)
    with pytest.raises(TimeoutError):
        answer_of(name, timeout_s=0.0)
