"""Command-line options with their environment variables.

The library declares the options of clients (`OPTIONS`); this module adds their spelling. Options that several node
commands share are fields of a dataclass.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final, cast, get_type_hints

import typer

from cosine_node.engine.pool_size import AUTO, parse_pool_size
from cosine_node.engine.vllm.environment import VllmOptions
from cosine_node.models.engine_kind import EngineChoice, parse_engine
from cosine_node.serving.node_options import NetworkOptions
from cosine_node.terminal.help_screen import Everyday, everyday
from cosine_p2p.access import Access
from cosine_p2p.invitation import follow_invitations
from cosine_p2p.request.options import OPTIONS, ClientOptions, merge_options
from cosine_p2p.transport.config import DEFAULT_HOST_MADDRS, DEFAULT_NETWORK
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role

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


# Options under the headings of the help; those of client options are in `Purpose`.
network_option = partial(option, panel="Network")
model_option = partial(option, panel="Model")
operation_option = partial(option, panel="Operation")


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
    "share_feedback": "share-feedback/--no-share-feedback",
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
    *("share_feedback", "warm_spare", "draft_from", "past_replies", "generation_config", "timeout_s"),
)
"""Further client options of `generate` and `serve`."""


def _metavar(name: str) -> str | None:
    return next((metavar for metavar, names in _METAVARS.items() if name in names), None)


def client_option(name: str) -> Any:
    declared = OPTIONS[name]
    more: dict[str, Any] = {"show_default": name != "share_feedback", "everyday": declared.everyday}
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
    if options.get("dtype") == AUTO:
        # `COSINE_DTYPE` is also an option of nodes, which accept auto.
        options["dtype"] = None
    # What cannot be is said before anything is loaded.
    merge_options({}, options, ClientOptions)
    return cast(ClientOptions, options)


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
Relays = Annotated[
    list[str] | None, network_option("relay", "ADDRESS", "Relay for a node behind NAT; may be repeated.")
]

LogFormat = Annotated[str, option("log-format", "FORMAT", "pretty, or json for one event per line on stdout.")]
AsJson = Annotated[bool, everyday("--json", help="Print one JSON object on stdout. All else is on stderr.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The network that a node is in, and the addresses at which others reach it."""

    initial_peers: InitialPeers = None
    network: Network = DEFAULT_NETWORK
    swarm: SwarmFile = None
    identity: IdentityFile = None
    host_maddr: Annotated[
        list[str] | None,
        network_option(
            "host-maddr",
            "ADDRESS",
            "Address to listen on. For example /ip4/0.0.0.0/tcp/4001; may be repeated.",
            everyday=True,
        ),
    ] = None
    announce_maddr: Annotated[
        list[str] | None,
        network_option("announce-maddr", "ADDRESS", "Address to announce to others; may be repeated."),
    ] = None
    lan: Annotated[
        bool | None,
        network_option("lan/--no-lan", "", "Be found in the local network, and find nodes there. Default: yes."),
    ] = None

    def network_options(self, deny: list[str] | None, **more: Any) -> NetworkOptions:
        """The network options of the process. Raises `UsageError`."""
        access = access_of(self.network, self.swarm, deny, lan=self.lan)
        peers, access = follow_invitations(several(self.initial_peers), access)
        return NetworkOptions(
            access=access,
            identity_file=self.identity or access.identity_file,
            initial_peers=peers,
            host_maddrs=several(self.host_maddr) or DEFAULT_HOST_MADDRS,
            announce_maddrs=several(self.announce_maddr),
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModelOptions:
    """Model of a node, and its engine."""

    model: Annotated[
        list[str] | None,
        model_option(
            "model",
            "MODEL",
            "zoo:NAME, a folder, or a Hugging Face id. Also ngram, or the texts of a server, openai:URL#MODEL; may "
            "be repeated for several drafters.",
            everyday=True,
        ),
    ] = None
    target: Annotated[
        str | None,
        model_option(
            "target", "MODEL", "A drafter's target, or a public name. That of a verifier's model.", everyday=True
        ),
    ] = None
    engine: Annotated[
        str,
        model_option(
            "engine",
            "ENGINE",
            "torch, llama (llama.cpp, GGUF files only), vllm (no GGUF files), or auto: torch if it can hold the "
            "model.",
        ),
    ] = AUTO
    device: Annotated[
        str,
        model_option("device", "DEVICE", "auto, cpu, cuda, cuda:0 or mps; with llama.cpp also vulkan or metal."),
    ] = AUTO
    dtype: Annotated[str, model_option("dtype", "DTYPE", "auto, float32, bfloat16 or float16.")] = AUTO
    quantize: Annotated[
        str | None,
        model_option(
            "quantize",
            "KIND",
            "Weight format: float16 (CPU), int8, int4 (on a GPU by torchao), or stored, as in the GGUF file.",
        ),
    ] = None
    kv_memory: Annotated[
        str,
        model_option(
            "kv-memory", "SIZE", "Size of the KV cache, such as 8GiB, or a share of the free memory, such as 0.5."
        ),
    ] = AUTO
    vllm_python: Annotated[
        Path | None,
        model_option(
            "vllm-python", "FILE", "Python with vLLM 0.32.0, for --engine vllm. Default: that of `make vllm`."
        ),
    ] = None
    tensor_parallel: Annotated[
        int, model_option("tensor-parallel", "COUNT", "Processes or cards that share each layer in vLLM.")
    ] = 1
    pipeline_parallel: Annotated[
        int, model_option("pipeline-parallel", "COUNT", "Processes or cards that vLLM divides the layers among.")
    ] = 1
    max_requests: Annotated[
        int, operation_option("max-requests", "COUNT", "Maximum number of concurrent requests.")
    ] = 16

    def engine_choice(self, role: Role | None, **more: Any) -> EngineChoice:
        """The engine options for a node of that role. Raises `UsageError`."""
        is_verifier = role is Role.VERIFIER
        return EngineChoice(
            kind=parse_engine(self.engine),
            device=self.device,
            dtype=self.dtype,
            quantize=self.quantize,
            vllm=VllmOptions(self.vllm_python, self.tensor_parallel, self.pipeline_parallel),
            pool_size=parse_pool_size(self.kv_memory, requests=self.max_requests, is_verifier=is_verifier),
            **more,
        )


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each field of its dataclass parameters.

    A parameter `options: Annotated[ClientOptions, ENTRANCE]` becomes one option for each name in `ENTRANCE`.
    """
    flat: list[Parameter] = []
    groups: dict[str, tuple[list[str], Callable[..., Any]]] = {}
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in signature(command).parameters.items():
        hint = hints[name]
        read: Callable[..., Any]
        if getattr(hint, "__origin__", None) is ClientOptions:
            grouped, read = [_client_parameter(each) for each in hint.__metadata__[0]], read_client_options
        elif is_dataclass(hint):
            read, types = hints[name], get_type_hints(hint, include_extras=True)
            grouped = [
                Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=types[each.name])
                for each in fields(hint)
            ]
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


def access_of(
    network: str, swarm: Path | None, deny: list[str] | None, identity: Path | None = None, *, lan: bool | None
) -> Access:
    """The values of --network, --swarm, --deny and --lan, and of a client's --identity. Raises `UsageError`."""
    return replace(Access.parse(network=network, swarm=swarm, deny=several(deny), lan=lan), identity_file=identity)


def parse_role(text: str) -> Role:
    if text not in set(Role):
        raise UsageError(f"--role must be one of {', '.join(Role)}, not {text!r}.")
    return Role(text)
