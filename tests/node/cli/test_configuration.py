"""A configuration file's names: every option of every command, in any of its spellings."""

from typing import Any

import pytest
from typer.main import get_command

from cosine_node.cli.app import app
from cosine_node.cli.configuration import defaults_by_command, spellings, unknown_names

COMMANDS: dict[str, Any] = getattr(get_command(app), "commands", {})


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_of_every_command_can_be_set(name: str) -> None:
    options = spellings(COMMANDS[name])
    for parameter in COMMANDS[name].params:
        assert options[parameter.name] is parameter
        long = [option for option in parameter.opts if option.startswith("--")]
        assert all(options[option.removeprefix("--").replace("-", "_")] is parameter for option in long)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_one_value_of_a_repeatable_option_needs_no_brackets(name: str) -> None:
    for parameter in COMMANDS[name].params:
        table = {name: {parameter.name: "x"}}
        expected = ["x"] if getattr(parameter, "multiple", False) else "x"
        assert defaults_by_command(table, COMMANDS)[name] == {parameter.name: expected}


def test_the_doctor_takes_what_is_said_of_join_unless_told_otherwise() -> None:
    tables = {"join": {"role": "drafter", "network": "mine", "emulate": "60/6"}, "doctor": {"network": "other"}}
    assert defaults_by_command(tables, COMMANDS)["doctor"] == {"role": "drafter", "network": "other"}


def test_names_that_mean_nothing_are_found() -> None:
    tables: dict[str, dict[str, Any]] = {
        "join": {"role": "drafter", "modle": "x"},
        "jion": {"role": "drafter"},
        "status": {"json": True},
    }
    assert unknown_names(tables, COMMANDS) == ["[jion]", "join.modle"]
