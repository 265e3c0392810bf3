"""Commands of the laboratory are found where it is installed; without it a sentence says how to install it."""

import subprocess
import sys

import pytest

from cosine_node.cli.laboratory import COMMANDS, laboratory_part
from cosine_protocol.errors import UsageError

WITHOUT = "import importlib.metadata as m; m.entry_points = lambda **_: ()\nimport sys; from {} import main; main()"


def without_laboratory(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    code = (sys.executable, "-c", WITHOUT.format(program), *arguments)
    return subprocess.run(code, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("cosine_node.cli", ("simulate", "--scenario", "home", "--json")),
        ("cosine_node.cli", ("bench", "rtt", "--quick")),
        ("cosine_tui.cli", ("--demo", "--screenshot", "/tmp/none.svg")),
    ],
)
def test_without_it_one_sentence_says_how_to_install_it(program: str, arguments: tuple[str, ...]) -> None:
    done = without_laboratory(program, *arguments)
    assert done.returncode == 2
    assert done.stderr == "Error: This needs the laboratory: `pip install ./lab` in a checkout of the project.\n"


def test_without_it_the_help_lists_its_commands() -> None:
    done = without_laboratory("cosine_node.cli", "--help")
    assert done.returncode == 0
    assert "simulate " in done.stdout and "bench " in done.stdout


def test_an_installation_whose_checkout_is_gone_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cosine_lab", None)
    for name in [name for name in sys.modules if name.startswith("cosine_lab.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError, match=r"pip install \./lab"):
        laboratory_part(COMMANDS, "simulate")
