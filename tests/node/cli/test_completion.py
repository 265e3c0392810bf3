"""Shell completion: the script a shell asks for, and what it proposes."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

import pytest

from tests.thoroughness import quick_first


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        (sys.executable, "-m", "cosine_node", *arguments),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", **environment},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


SCRIPTS: Final = {"bash": "complete -o", "zsh": "#compdef cosine-node", "fish": "complete"}
"""What the script of a shell has in it."""


@pytest.mark.parametrize("shell", quick_first(SCRIPTS))
def test_a_shell_gets_its_script(shell: str) -> None:
    script = run("--show-completion", shell)
    assert SCRIPTS[shell] in script and "_COSINE_NODE_COMPLETE" in script


@pytest.mark.parametrize(
    ("words", "proposals"),
    [("cosine-node d", {"demo", "doctor"}), ("cosine-node doctor --initial", {"--initial-peers"})],
)
def test_commands_and_options_are_proposed(words: str, proposals: set[str]) -> None:
    asked: Mapping[str, str] = {
        "_COSINE_NODE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    assert set(run(**asked).split()) == proposals
