"""`--help` shows the everyday options of each command on one screen, and `--help-all` shows every option."""

from collections.abc import Iterator
from typing import Annotated, Any, Final

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from cosine_cli.program import ASKING_PROGRAM, NODE_PROGRAM, app
from cosine_cli.start import main
from cosine_terminal.help_screen import Command, everyday
from cosine_tui.cli import app as monitor
from cosine_tui.cli import main as monitor_main

COLUMNS, LINES = 80, 24
PROGRAMS: Final[dict[str, tuple[Any, Any]]] = {
    NODE_PROGRAM: (app, lambda given: main(given)),
    ASKING_PROGRAM: (app, lambda given: main(given, program=ASKING_PROGRAM)),
    "cosine-tui": (monitor, monitor_main),
}


def commands_of(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands_of(each, *path, name)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_help_of_every_command_is_one_screen_and_that_of_all_tells_every_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    commands, run = PROGRAMS[program]

    def told(*given: str) -> str:
        with pytest.raises(SystemExit) as exit_:
            run(given)
        assert not exit_.value.code
        return capsys.readouterr().out

    for path, command in commands_of(get_command(commands)):
        if path == ("tui",) or (path and program == ASKING_PROGRAM):
            # Their help is that of `cosine-tui` and of `cosine-node`.
            continue
        shown, every = told(*path, "--help"), told(*path, "--help-all")
        assert len(shown.splitlines()) <= LINES, shown
        assert f"{' '.join((program, *path))} --help-all" in shown.rstrip().splitlines()[-1]
        missing = [name for each in command.params for name in each.opts if name not in every]
        assert [name for name in missing if name.startswith("-")] == []


def test_an_option_is_advanced_unless_its_declaration_says_that_it_is_everyday() -> None:
    app = typer.Typer(rich_markup_mode="rich")

    @app.command(cls=Command)
    def command(
        usual: Annotated[int, everyday(help="A number. Odd.", envvar="OFTEN")] = 1,
        new: Annotated[int, typer.Option(help="Something new.", envvar="NEW")] = 3,
    ) -> None:
        """Do it.

        At length.
        """

    shown, every = (CliRunner().invoke(app, [option]).output for option in ("--help", "--help-all"))
    assert "A number." in shown and "Do it." in shown
    for text in ("Odd.", "OFTEN", "--new", "At length."):
        assert text in every and text not in shown
