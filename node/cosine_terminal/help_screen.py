"""The help of commands: everyday options and commands on one screen (`--help`), all of them with `--help-all`.

An option or command is everyday if its declaration says so, else advanced.
"""

from collections.abc import Callable, Mapping
from copy import copy
from inspect import cleandoc
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

HELP: Final = "--help"
ALL: Final = "--help-all"
PASS_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True}


class Everyday(str):
    """The heading in `--help-all` of an everyday option or command. `--help` has the first sentence of its help."""


def everyday(*names: str, help: str, **more: Any) -> Any:
    """An everyday option, with the arguments of `typer.Option`."""
    return typer.Option(*names, help=help, rich_help_panel=Everyday("Options"), **more)


class Command(TyperCommand):
    """A command whose `--help` shows its everyday options."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_help_all(self, super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(Command, _shown(self, ctx)).format_help(ctx, formatter)


class Group(TyperGroup):
    """Commands, of which `--help` shows the everyday ones.

    usual: The command that runs if none is named. Its arguments may follow.
    """

    usual: ClassVar[str] = ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if self.usual and not (args and args[0] in (HELP, ALL, *self.commands)):
            takes_one = any(isinstance(each, TyperArgument) for each in self.commands[self.usual].params)
            if not args or takes_one or args[0].startswith("-"):
                args = [self.usual, *args]
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        return _with_help_all(self, super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(Group, _shown(self, ctx)).format_help(ctx, formatter)


def add_command(
    program: typer.Typer,
    command: Callable[..., None] | typer.Typer,
    *,
    heading: str,
    name: str | None = None,
    example: str = "",
) -> None:
    """Add a command under a heading of the help."""
    epilog = f"Example: {example}" if example else None
    if isinstance(command, typer.Typer):
        program.add_typer(command, rich_help_panel=heading, epilog=epilog)
        return
    settings = PASS_ON if getattr(command, "takes_anything", False) else None
    program.command(
        name,
        cls=Command,
        rich_help_panel=heading,
        epilog=epilog,
        context_settings=settings,
        add_help_option=getattr(command, "add_help_option", True),
    )(command)


def actions(name: str, text: str, commands: Mapping[str, Callable[..., None]], *, usual: str = "") -> typer.Typer:
    """A command that consists of other commands, the `usual` of which runs if none is named."""
    kind = type("Actions", (Group,), {"usual": usual})
    made = typer.Typer(name=name, help=text, cls=kind, no_args_is_help=not usual, rich_markup_mode="rich")
    for action, command in commands.items():
        add_command(made, command, heading=Everyday("Actions"), name=action)
    return made


def takes_anything(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take unknown arguments."""
    vars(command)["takes_anything"] = True
    return command


def _with_help_all(command: Any, parameters: list[Any]) -> list[Any]:
    """The parameters of a command, which end with `--help`, and `--help-all`."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            # The help shows no type.
            parameter.metavar = ""
    if not command.add_help_option:
        return parameters
    if "help_all" not in vars(command):
        told = parameters[-1]

        def show_all(ctx: Any, parameter: Any, is_wanted: bool) -> None:
            ctx.meta[ALL] = is_wanted
            told.callback(ctx, parameter, is_wanted)

        command.help_all = copy(told)
        vars(command.help_all).update(name="help_all", opts=[ALL], callback=show_all, help="Show all and exit.")
    return [*parameters, command.help_all]


def _shown(command: Any, ctx: Any) -> Any:
    """The command as its help shows it."""
    if ctx.meta.get(ALL):
        return command
    shown = copy(command)
    shown.add_help_option = False
    shown.params = [_in_a_line(each) for each in command.params if _is_everyday(each)]
    shown.help = cleandoc(command.help or "").partition("\n\n")[0]
    if isinstance(command, TyperGroup):
        shown.commands = {name: each for name, each in command.commands.items() if _is_everyday(each)}
    what = "commands" if isinstance(command, TyperGroup) else "options"
    shown.epilog = "\n".join(filter(None, (command.epilog, f"All {what}: {ctx.command_path} {ALL}")))
    return shown


def _is_everyday(shown: Any) -> bool:
    return isinstance(shown, TyperArgument) or isinstance(shown.rich_help_panel, Everyday)


def _in_a_line(parameter: Any) -> Any:
    """The parameter with the first sentence of its help, under the first heading."""
    if isinstance(parameter, TyperArgument):
        return parameter
    shown = copy(parameter)
    line = f"{parameter.help.partition('. ')[0].removesuffix('.')}."
    vars(shown).update(help=line, rich_help_panel=None, show_envvar=False, show_default=False)
    return shown
