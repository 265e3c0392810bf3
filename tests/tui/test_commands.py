"""The table of commands."""

from cosine_tui.commands import BY_NAME, COMMANDS


def test_names_and_keys_are_different() -> None:
    assert len(BY_NAME) == len(COMMANDS)
    keys = [command.key for command in COMMANDS if command.key]
    assert len(set(keys)) == len(keys)


def test_keys_as_people_write_them() -> None:
    assert [BY_NAME[name].key_label for name in ("help", "cancel", "filter")] == ["F1", "Ctrl+G", ""]


def test_a_command_as_it_is_typed() -> None:
    assert [BY_NAME[name].usage for name in ("quit", "request")] == ["/quit", "/request N"]
