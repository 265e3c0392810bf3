"""The command tree, the configuration file, and how an error becomes one sentence and an exit code."""

import json
import logging
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from platformdirs import user_config_dir

from cosine_node.cli.bench import bench
from cosine_node.cli.bootstrap import bootstrap
from cosine_node.cli.configuration import DOCTOR, defaults_by_command
from cosine_node.cli.demo import demo
from cosine_node.cli.doctor import doctor
from cosine_node.cli.generate import generate
from cosine_node.cli.identity import identity
from cosine_node.cli.join import join
from cosine_node.cli.serve import serve
from cosine_node.cli.service import service
from cosine_node.cli.simulate import simulate
from cosine_node.cli.status import status
from cosine_node.cli.zoo import zoo
from cosine_protocol.errors import CosineError, UsageError

LOG = logging.getLogger(__name__)
USAGE_EXIT = 2
FAILURE_EXIT = 1
INTERRUPT_EXIT = 130
NODE_EXTRA = frozenset(
    {"google", "hivemind", "huggingface_hub", "numpy", "safetensors", "torch", "transformers", "uvloop"}
)
GATEWAY_EXTRA = frozenset({"prometheus_client", "starlette", "uvicorn"})

app = typer.Typer(
    name="cosine-node",
    help="Volunteers' GPUs generate text together: drafters guess, verifiers check, the text is the target's.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings={"token_normalize_func": lambda token: token.replace("_", "-")},
)


def default_config_file() -> Path:
    """Where options are read from unless `--config` names another file."""
    return Path(user_config_dir("cosine-p2p")) / "config.toml"


@app.callback()
def configure(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(envvar="COSINE_CONFIG", help="TOML file of options, one table per command.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens, to stderr.")] = False,
) -> None:
    """Options given here hold for every command."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("asyncio").addFilter(is_news)
    context.default_map = _defaults(context, config)


def _defaults(context: typer.Context, config: Path | None) -> dict[str, Any]:
    try:
        tables = read_config(config)
    except UsageError:
        if context.invoked_subcommand != DOCTOR:
            raise
        # It says so itself, beside what else it finds.
        tables = {}
    commands: dict[str, Any] = getattr(context.command, "commands", {})
    return defaults_by_command(tables, commands)


def read_config(file: Path | None) -> dict[str, Any]:
    """Defaults per command from a TOML file; keys may be written with - or _. Raises `UsageError`."""
    place = file or default_config_file()
    if file is None and not place.is_file():
        return {}
    try:
        tables = tomllib.loads(place.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"The configuration file {place} cannot be read: {error}.") from None
    return {
        command: {key.replace("-", "_"): value for key, value in table.items()}
        for command, table in tables.items()
        if isinstance(table, dict)
    }


for command in (join, bootstrap, generate, serve, status, doctor, demo, simulate, bench, identity, zoo):
    app.command()(command)
# What follows its own options is for the command that the unit runs.
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(service)


def is_news(record: logging.LogRecord) -> bool:
    """Not that a child was waited for already, as asyncio warns where one ends while it is sent a signal."""
    return not str(record.msg).startswith("Unknown child process pid")


def spread_peers(arguments: Sequence[str]) -> list[str]:
    """Let one `--initial-peers` be followed by several addresses, as `--initial-peers A B` is often written."""
    spread: list[str] = []
    is_taking = False
    for argument in arguments:
        if argument.replace("_", "-") == "--initial-peers":
            is_taking = False
            spread.append(argument)
            continue
        previous_is_option = bool(spread) and spread[-1].replace("_", "-") == "--initial-peers"
        if is_taking and argument.startswith("/"):
            spread += ["--initial-peers", argument]
            continue
        is_taking = previous_is_option
        spread.append(argument)
    return spread


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 on success, 2 on bad usage, 1 on failure, with one sentence on stderr."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=spread_peers(given), prog_name="cosine-node")
    except KeyboardInterrupt:
        sys.exit(INTERRUPT_EXIT)
    except ModuleNotFoundError as missing:
        if missing.name not in NODE_EXTRA | GATEWAY_EXTRA:
            raise
        extra = "gateway" if missing.name in GATEWAY_EXTRA else "node"
        _report(
            UsageError(f"This command needs {missing.name}; install cosine-p2p[{extra}]."),
            as_json="--json" in given,
        )
        sys.exit(USAGE_EXIT)
    except CosineError as error:
        _report(error, as_json="--json" in given)
        sys.exit(USAGE_EXIT if isinstance(error, UsageError) else FAILURE_EXIT)
    except OSError as error:
        LOG.debug("the system refused", exc_info=True)
        _report(CosineError(_refusal(error)), as_json="--json" in given)
        sys.exit(FAILURE_EXIT)


def _refusal(error: OSError) -> str:
    place = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{place}; `cosine-node doctor` looks for what is wrong on this machine."


def _report(error: CosineError, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
    sys.stderr.write(f"Error: {error}\n")
