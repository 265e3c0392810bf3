"""Commands and Python programs of the documentation work on a real swarm."""

import re
import shlex
import tomllib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command

from cosine_cli.program import app
from cosine_lab.simulation.scenario import scenario_of
from cosine_terminal.options import spread_peers
from cosine_tui.cli import app as monitor
from tests.docs import processes
from tests.docs.conftest import Place
from tests.docs.exemptions import EXEMPTIONS, SUBSTITUTIONS, Check, Exemption
from tests.docs.pages import PAGES, ROOT, Command, all_commands, blocks_of, inline_of, python_of

COMMANDS: Final = all_commands()

PROGRAMS: Final = [page for page in PAGES if python_of(page)]
MAIN_PAGES: Final = [
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in ("gateway.md", "python.md", "quickstart.md")),
]


def exemption_of(command: Command) -> Exemption | None:
    return next((exemption for exemption in EXEMPTIONS if exemption.covers(command.text)), None)


OWN: Final = ("cosine ", "cosine-node ")
RUN: Final = [command for command in COMMANDS if exemption_of(command) is None]


def main_pages_first(pages: Iterable[Path]) -> list[Any]:
    """Parameters: the main pages run in `make check`, the others in `make soak`."""
    return [
        pytest.param(page, id=page.name, marks=() if page in MAIN_PAGES else pytest.mark.soak) for page in pages
    ]


@pytest.mark.network
@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", main_pages_first(dict.fromkeys(command.block.page for command in RUN)))
def test_the_commands_of_a_page_work(page: Path, place: Place) -> None:
    folder = place.folder_of(page)
    for command in RUN:
        if command.block.page == page:
            processes.work(place.real(command.text), folder, place.environment)


@pytest.mark.network
@pytest.mark.thorough
@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", main_pages_first(PROGRAMS))
def test_the_python_of_a_page_works(page: Path, place: Place) -> None:
    folder = place.folder_of(page)
    (folder / "typed.py").write_text(place.real(python_of(page)))
    processes.work("python typed.py", folder, place.environment)


def test_the_command_line_understands_every_command() -> None:
    for command in RUN:
        if command.text.startswith(OWN):
            understand(re.split(r" [|<>&]+ ", command.text)[0])
    for command in COMMANDS:
        exemption = exemption_of(command)
        if exemption is not None and exemption.check is not Check.NOTHING:
            CHECKS[exemption.check](command.text)


def test_exemptions_and_substitutions_are_still_needed() -> None:
    texts = [command.text for command in RUN] + [python_of(page) for page in PAGES]
    idle: list[object] = [one for one in EXEMPTIONS if all(exemption_of(each) != one for each in COMMANDS)]
    idle += [one for one in SUBSTITUTIONS if all(one.apply(text) == text for text in texts)]
    assert idle == []


@cache
def command_line(program: str) -> Any:
    return get_command(monitor if program == "cosine-tui" else app)


def understand(text: str) -> None:
    program, *arguments = shlex.split(text.replace("cosine tui", "cosine-tui"))
    cli = command_line(program)
    while hasattr(cli, "commands") and not (arguments and arguments[0].startswith("-") and not cli.usual):
        cli = cli.commands[arguments.pop(0) if arguments and arguments[0] in cli.commands else cli.usual]
    if hasattr(cli, "commands"):
        assert arguments[0] in {option for parameter in cli.params for option in parameter.opts}
        return
    with cli.make_context(program, spread_peers(arguments)):
        pass


def find_targets(text: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    (target, *_) = shlex.split(text)[1:]
    assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"the Makefile has no {target}"


def find_extras(text: str) -> None:
    for place, extras in re.findall(r"(\.[\w/]*)\[([\w,]+)\]", text):
        project = tomllib.loads((ROOT / place / "pyproject.toml").read_text())["project"]
        assert set(extras.split(",")) <= project["optional-dependencies"].keys()


def test_every_scenario_of_the_guide_can_be_read() -> None:
    blocks = [block for block in blocks_of(ROOT / "lab" / "README.md") if block.language == "toml"]
    assert len([scenario_of(tomllib.loads(block.text)) for block in blocks]) == 2


CHECKS: Final[dict[Check, Callable[[str], None]]] = {
    Check.OPTIONS: understand,
    Check.TARGET: find_targets,
    Check.EXTRAS: find_extras,
}


@cache
def own_options() -> set[str]:
    parsers: list[Any] = [command_line("cosine-node"), command_line("cosine-tui")]
    for parser in parsers:
        parsers += getattr(parser, "commands", {}).values()
    parameters = [parameter for parser in parsers for parameter in parser.params]
    named = {option for one in parameters for option in (*one.opts, *one.secondary_opts)}
    return named | {"--help", "--help-all"}


def test_options_named_in_prose_exist() -> None:
    ours = [code for page in PAGES for code in inline_of(page) if not code.startswith("python -m ")]
    named = {option.replace("_", "-") for code in ours for option in re.findall(r"--[a-z][\w-]*", code)}
    assert named <= own_options()
