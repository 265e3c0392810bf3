"""The commands take all that docs/operate.md tells people to type."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cosine_node.cli.app import app, spread_peers
from cosine_node.cli.configuration import read_config, unknown_names

PAGE = (Path(__file__).parents[3] / "docs" / "operate.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
COMMANDS: dict[str, Any] = getattr(get_command(app), "commands", {})
LINES = sorted(
    line.partition("#")[0].partition(" > ")[0].strip()
    for kind, block in BLOCKS
    for line in block.splitlines()
    if not kind and line.startswith("cosine-node ") and "--install-completion" not in line
)


def test_there_is_something_to_check() -> None:
    assert len(LINES) > 5


@pytest.mark.parametrize("line", LINES)
def test_a_command_of_the_page_is_understood(line: str) -> None:
    name, *arguments = spread_peers(shlex.split(line)[1:])
    command = COMMANDS[name]
    if name == "service":
        command = COMMANDS["join"]
    with command.make_context(name, arguments):
        pass


def test_the_configuration_of_the_page_means_something(tmp_path: Path) -> None:
    (content,) = (block for kind, block in BLOCKS if kind == "toml")
    (tmp_path / "config.toml").write_text(content)
    tables = read_config(tmp_path / "config.toml")
    assert set(tables) == {"join", "generate", "status"}
    assert unknown_names(tables, COMMANDS) == []
