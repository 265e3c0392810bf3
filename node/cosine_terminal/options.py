"""Command-line options with their environment variables.

The library declares the options of clients (`OPTIONS`); this module adds their spelling. Options that several node
commands share are fields of a dataclass.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final, cast, get_type_hints

import typer

from cosine_p2p.access import Access
from cosine_p2p.invitation import SCHEME
from cosine_p2p.request.options import OPTIONS, ClientOptions, merge_options
from cosine_protocol.errors import BadSignature, UsageError
from cosine_protocol.identity import public_key_of
from cosine_terminal.help_screen import Everyday, everyday

DEFAULT_TARGET: Final = "zoo:target"


def option(
    name: str,
    metavar: str | None,
    text: str,
    panel: str = "Options",
    *,
    everyday: bool = False,
    **more: Any,
) -> Any:
    """The option `--name`, which `COSINE_NAME` in the environment gives too; of a flag the metavar is "".

    `name` may hold the spelling that switches a flag off, as in `name/--no-name`. `--help` shows
    everyday options, with the first sentence of the text.
    """
    variable = f"COSINE_{name.partition('/')[0].upper().replace('-', '_')}"
    heading = Everyday(panel) if everyday else panel
    given = {"metavar": metavar, "envvar": variable, "help": text, "rich_help_panel": heading, **more}
    return typer.Option(f"--{name}", **given)


def declared(default: Any, metavar: str, text: str, panel: str = "Options", **more: Any) -> Any:
    """A field of a dataclass that `takes_options` turns into an `option`, by default of the field's name."""
    return field(default=default, metadata={"metavar": metavar, "text": text, "panel": panel, **more})


# Options under the headings of the help; those of client options are in `Purpose`.
network_option = partial(option, panel="Network")


_METAVARS: Final[Mapping[str, tuple[str, ...]]] = {
    "NAME": ("network", "strategy"),
    "FILE": ("swarm", "identity", "schema", "grammar", "prediction"),
    "PEER": ("deny", "trust", "verifier", "coordination"),
    "MODEL": ("target",),
    "TOKENS": ("max_new_tokens", "min_tokens", "prompt_window_tokens"),
    "NUMBER": ("temperature", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed"),
    "SHARE": ("top_p", "min_p", "audit"),
    "COUNT": ("top_k", "logprobs", "prompt_logprobs", "max_drafters"),
    "TEXT": ("bad_words", "regex", "stop"),
    "FOLDER": ("draft_from",),
    "WORD": ("past_replies",),
    "SOURCE": ("generation_config",),
    "DTYPE": ("dtype",),
    "SECONDS": ("timeout_s",),
    "": ("ignore_eos", "lan", "warm_spare"),
}
"""What the help shows as the value of client options; flags have none."""
_NAMES: Final[Mapping[str, str]] = {
    "bad_words": "bad-word",
    "timeout_s": "timeout",
    "prompt_window_tokens": "prompt-window",
    "lan": "lan/--no-lan",
}
"""The names of client options on the command line that differ from the library's."""
_WITHOUT_VARIABLE: Final = frozenset(
    {"bad_words", "grammar", "logprobs", "prediction", "prompt_logprobs", "regex", "schema", "seed", "stop"}
    | {"trust", "verifier"}
)
"""Client options of a single command, which no environment variable gives."""

_CONTENTS: Final = ("schema", "grammar", "prediction")
"""Options whose value is the content of the named file."""

ENTRANCE: Final = ("network", "swarm", "identity", "deny", "lan")
"""Client options for joining a network."""
SERVED_BY: Final = (
    *("target", "strategy", "max_drafters", "prompt_window_tokens", "trust", "coordination", "audit"),
    *("warm_spare", "draft_from", "past_replies", "generation_config", "timeout_s"),
)
"""Further client options of `generate` and `serve`."""


def _metavar(name: str) -> str | None:
    return next((metavar for metavar, names in _METAVARS.items() if name in names), None)


def client_option(name: str) -> Any:
    declared = OPTIONS[name]
    more: dict[str, Any] = {"everyday": declared.everyday}
    if name in _WITHOUT_VARIABLE:
        more["envvar"] = None
    repeated = "; may be repeated." if isinstance(declared.default, tuple) else "."
    text = declared.help.removesuffix(".") + repeated
    spelled = _NAMES.get(name, name.replace("_", "-"))
    return option(spelled, _metavar(name), text, declared.purpose.value, **more)


def _client_parameter(name: str) -> Parameter:
    """The command parameter for a client option. None means that the default is determined later."""
    declared = OPTIONS[name]
    of: Any = Path if _metavar(name) == "FILE" else declared.kind.type
    default = None if declared.yields else declared.default
    if isinstance(default, tuple):
        of, default = list[str], None
    hint: Any = of if default is not None else of | None
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, client_option(name)])


def read_client_options(**given: Any) -> ClientOptions:
    """Convert the arguments of a command to client options. Raises `UsageError`."""
    options: dict[str, Any] = {
        name: several(value) if isinstance(OPTIONS[name].default, tuple) else value for name, value in given.items()
    }
    for name in _CONTENTS:
        if (file := options.get(name)) is not None:
            try:
                options[name] = file.read_text("utf-8")
            except (OSError, UnicodeError) as error:
                raise UsageError(f"The {name} in {file} cannot be read: {error}.") from None
    if options.get("dtype") == "auto":
        # `COSINE_DTYPE` is also an option of nodes, which accept auto.
        options["dtype"] = None
    for peer_id in options.get("trust") or ():
        check_peer_id(peer_id, option="--trust")
    if options.get("verifier"):
        check_peer_id(options["verifier"], option="--verifier")
    # Errors are raised before anything is loaded.
    merge_options({}, options, ClientOptions)
    return cast(ClientOptions, options)


def check_peer_id(peer_id: str, *, option: str) -> None:
    """Raise `UsageError` for an invalid peer id."""
    try:
        public_key_of(peer_id)
    except BadSignature:
        raise UsageError(
            f"{option} takes peer ids, and {peer_id!r} is none; `status` shows those of nodes."
        ) from None


InitialPeers = Annotated[
    list[str] | None,
    network_option(
        "initial-peers",
        "ADDRESS",
        "Address of a node, or an invitation. Nodes print theirs; may be repeated.",
        everyday=True,
    ),
]
Link = Annotated[
    str | None, typer.Argument(metavar="LINK", help="Invitation, or the address of a node.", show_default=False)
]
Network = Annotated[str, client_option("network")]
SwarmFile = Annotated[Path | None, client_option("swarm")]
IdentityFile = Annotated[Path | None, client_option("identity")]
DeniedPeers = Annotated[list[str] | None, client_option("deny")]
Lan = Annotated[bool | None, client_option("lan")]
Target = Annotated[str | None, client_option("target")]
LogFormat = Annotated[str, option("log-format", "FORMAT", "pretty, or json for one event per line on stdout.")]
AsJson = Annotated[bool, everyday("--json", help="Print one JSON object on stdout. All else is on stderr.")]


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each field of its dataclass parameters.

    A parameter `options: Annotated[ClientOptions, ENTRANCE]` becomes one option for each name in `ENTRANCE`, and so
    does one of a dataclass.
    """
    flat: list[Parameter] = []
    groups: dict[str, tuple[list[str], Callable[..., Any]]] = {}
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in signature(command).parameters.items():
        hint = hints[name]
        kind, names = (hint.__origin__, hint.__metadata__[0]) if hasattr(hint, "__metadata__") else (hint, None)
        read: Callable[..., Any]
        if kind is ClientOptions:
            grouped, read = [_client_parameter(each) for each in names or ()], read_client_options
        elif is_dataclass(kind):
            grouped, read = _field_parameters(kind, names), cast(Callable[..., Any], kind)
        else:
            flat.append(parameter.replace(annotation=hint, kind=Parameter.KEYWORD_ONLY))
            continue
        flat += grouped
        groups[name] = [each.name for each in grouped], read

    @wraps(command)
    def run(**given: Any) -> None:
        read_groups = {
            name: read(**{each: given.pop(each) for each in names}) for name, (names, read) in groups.items()
        }
        command(**given, **read_groups)

    return declaring(run, flat)


def _field_parameters(of: Any, names: Collection[str] | None) -> list[Parameter]:
    """The command parameters for the fields of a dataclass, of all or of those with these names."""
    hints = get_type_hints(of, include_extras=True)
    found = []
    for each in fields(of):
        if names is None or each.name in names:
            hint = hints[each.name]
            if each.metadata:
                hint = Annotated[hint, option(**{"name": each.name.replace("_", "-"), **each.metadata})]
            found.append(Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=hint))
    return found


def declaring(command: Callable[..., None], parameters: Sequence[Parameter]) -> Callable[..., None]:
    """Let Typer read these parameters, which it takes from both the signature and the annotations."""
    vars(command)["__signature__"] = Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def several(values: list[str] | None) -> tuple[str, ...]:
    return tuple(values or ())


def peers_of(link: str | None, initial_peers: list[str] | None) -> tuple[str, ...]:
    """The values of `Link` and `InitialPeers`."""
    return several([link, *(initial_peers or ())] if link else initial_peers)


def access_of(network: str, swarm: Path | None, deny: list[str] | None, *, lan: bool | None) -> Access:
    """The values of --network, --swarm, --deny and --lan. Raises `UsageError`."""
    return Access.parse(network=network, swarm=swarm, deny=several(deny), lan=lan)


def spread_peers(arguments: Sequence[str]) -> list[str]:
    """Rewrite `--initial-peers A B`, of addresses or invitations, as `--initial-peers A --initial-peers B`."""
    spread: list[str] = []
    follows_option = follows_address = False
    for argument in arguments:
        is_option = argument.replace("_", "-") == "--initial-peers"
        if follows_address and argument.startswith(("/", SCHEME)):
            spread.append("--initial-peers")
        else:
            follows_address = follows_option and not is_option
        spread.append(argument)
        follows_option = is_option
    return spread
