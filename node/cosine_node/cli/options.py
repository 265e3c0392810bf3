"""Options that several commands share, each with its environment variable, and how they are read."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cosine_p2p.request.options import AUTO, NONE, ClientOptions
from cosine_p2p.transport.config import DEFAULT_HOST_MADDRS
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role

if TYPE_CHECKING:
    from cosine_p2p.access import Access

# The embedded models: a node runs with them before its owner has chosen any.
DEFAULT_TARGET: Final = "zoo:target"
DEFAULT_DRAFTER: Final = "zoo:draft-general"

# Headings of the help.
NETWORK_PANEL: Final = "Network"
MODEL_PANEL: Final = "Model"
PEERS_PANEL: Final = "Who serves"
SAMPLING_PANEL: Final = "Text"
OPERATION_PANEL: Final = "Operation"

# Options of the network.
InitialPeers = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ADDRESS",
        envvar="COSINE_INITIAL_PEERS",
        help="Address of a node of the network, as nodes print it; may be repeated.",
        rich_help_panel=NETWORK_PANEL,
    ),
]
Network = Annotated[
    str,
    typer.Option(
        metavar="NAME", envvar="COSINE_NETWORK", help="Name of the network.", rich_help_panel=NETWORK_PANEL
    ),
]
SwarmFile = Annotated[
    Path | None,
    typer.Option(
        "--swarm",
        metavar="FILE",
        envvar="COSINE_SWARM",
        help="Swarm file of a private swarm, with this peer's certificate; takes the place of --network.",
        rich_help_panel=NETWORK_PANEL,
    ),
]
DeniedPeers = Annotated[
    list[str] | None,
    typer.Option(
        "--deny",
        metavar="PEER",
        envvar="COSINE_DENY",
        help="Do not talk to this peer, or to those in this file, one peer id a line; may be repeated.",
        rich_help_panel=NETWORK_PANEL,
    ),
]
IdentityFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="COSINE_IDENTITY",
        help="Key file; created if it does not exist.",
        rich_help_panel=NETWORK_PANEL,
    ),
]
HostMaddrs = Annotated[
    list[str] | None,
    typer.Option(
        "--host-maddr",
        metavar="ADDRESS",
        envvar="COSINE_HOST_MADDR",
        help="Address to listen on, for example /ip4/0.0.0.0/tcp/4001; may be repeated.",
        rich_help_panel=NETWORK_PANEL,
    ),
]
AnnounceMaddrs = Annotated[
    list[str] | None,
    typer.Option(
        "--announce-maddr",
        metavar="ADDRESS",
        envvar="COSINE_ANNOUNCE_MADDR",
        help="Address that others shall dial; may be repeated.",
        rich_help_panel=NETWORK_PANEL,
    ),
]
Relays = Annotated[
    list[str] | None,
    typer.Option(
        "--relay",
        metavar="ADDRESS",
        envvar="COSINE_RELAY",
        help="Relay for a node behind NAT; may be repeated.",
        rich_help_panel=NETWORK_PANEL,
    ),
]

# Options of the model that a node serves.
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        envvar="COSINE_MODEL",
        help="zoo:NAME, a folder, a Hugging Face id, or ngram; may be repeated for several drafters.",
        rich_help_panel=MODEL_PANEL,
    ),
]
TargetName = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        envvar="COSINE_TARGET",
        help="The target that is drafted for; of a verifier its public name.",
        rich_help_panel=MODEL_PANEL,
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        metavar="ENGINE",
        envvar="COSINE_ENGINE",
        help="torch, llama (llama.cpp, for GGUF files), or auto: llama for a GGUF file where it is installed.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="DEVICE",
        envvar="COSINE_DEVICE",
        help="auto, cpu, cuda, cuda:0 or mps; of llama.cpp also vulkan or metal.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="DTYPE",
        envvar="COSINE_DTYPE",
        help="auto, float32, bfloat16 or float16.",
        rich_help_panel=MODEL_PANEL,
    ),
]
Quantize = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        envvar="COSINE_QUANTIZE",
        help="int8, or int4 on CUDA: hold weights in fewer bits; needs torchao.",
        rich_help_panel=MODEL_PANEL,
    ),
]
KvMemory = Annotated[
    str,
    typer.Option(
        metavar="SIZE",
        envvar="COSINE_KV_MEMORY",
        help="Memory of the KV cache: 8GiB, or a part of what is free such as 0.5.",
        rich_help_panel=MODEL_PANEL,
    ),
]
MaxRequests = Annotated[
    int,
    typer.Option(
        metavar="COUNT", envvar="COSINE_MAX_REQUESTS", help="Served at once.", rich_help_panel=OPERATION_PANEL
    ),
]

# Of nodes and clients.
GenerationConfig = Annotated[
    str,
    typer.Option(
        metavar="SOURCE",
        envvar="COSINE_GENERATION_CONFIG",
        help="auto: the model's own generation_config.json sets the defaults of the text; none: it does not.",
        rich_help_panel=SAMPLING_PANEL,
    ),
]

# Options of clients.
Target = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        envvar="COSINE_TARGET",
        help="Target model, as its verifiers announce it: zoo:NAME, a Hugging Face id, NAME@DIGEST; or a folder.",
        rich_help_panel=PEERS_PANEL,
    ),
]
TrustedPeers = Annotated[
    list[str] | None,
    typer.Option(metavar="PEER", help="Only these peers; may be repeated.", rich_help_panel=PEERS_PANEL),
]
PromptWindow = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS",
        envvar="COSINE_PROMPT_WINDOW",
        help="Show drafters so many of the prompt's last tokens, 0 for all; 256, and all with --trust or --swarm.",
        rich_help_panel=PEERS_PANEL,
    ),
]
CoordinationName = Annotated[
    str,
    typer.Option(
        metavar="PEER",
        envvar="COSINE_COORDINATION",
        help="Coordinates drafters: client, verifier, or auto: the verifier where it is far away.",
        rich_help_panel=PEERS_PANEL,
    ),
]
AuditShare = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        envvar="COSINE_AUDIT",
        help="Have this share of texts audited by another verifier; 0 is none.",
        rich_help_panel=PEERS_PANEL,
    ),
]
WarmSpareFlag = Annotated[
    bool,
    typer.Option(
        "--warm-spare",
        metavar="",
        envvar="COSINE_WARM_SPARE",
        help="Keep a second verifier ready to go on with a long request; it sees the prompt.",
        rich_help_panel=PEERS_PANEL,
    ),
]
ShareReceipts = Annotated[
    bool,
    typer.Option(
        "--receipts/--no-receipts",
        envvar="COSINE_RECEIPTS",
        help="Send drafters a signed receipt for their tokens, which they may show to others.",
        rich_help_panel=PEERS_PANEL,
    ),
]
ShareFeedback = Annotated[
    bool | None,
    typer.Option(
        "--share-feedback/--no-share-feedback",
        envvar="COSINE_SHARE_FEEDBACK",
        help="Let drafters keep the text, and what they see of the prompt, to learn from it; on with --swarm.",
        rich_help_panel=PEERS_PANEL,
        show_default=False,
    ),
]
DEFAULT_AUDIT: Final = 0.05
"""A choice: a verifier that lies in every text is found within twenty, and honest ones spend little on it."""

# Options of the output.
LogFormat = Annotated[
    str,
    typer.Option(
        metavar="FORMAT", envvar="COSINE_LOG_FORMAT", help="pretty, or json for one event a line on stdout."
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", metavar="", help="Print one JSON object on stdout, all else on stderr.")
]


def several(values: list[str] | None) -> tuple[str, ...]:
    """The values of a repeatable option."""
    return tuple(values or ())


def shared_with_drafters(*, prompt_window: int | None, receipts: bool, feedback: bool | None) -> ClientOptions:
    """The options that say what drafters are shown and given of a request."""
    return {"prompt_window_tokens": prompt_window, "share_receipts": receipts, "share_feedback": feedback}


def access_of(network: str, swarm: Path | None, deny: list[str] | None, identity: Path | None = None) -> "Access":
    """The values of --network, --swarm and --deny, and of a client's --identity. Raises `UsageError`."""
    from cosine_p2p.access import Access

    return replace(Access.parse(network=network, swarm=swarm, deny=several(deny)), identity_file=identity)


def listening_maddrs(values: list[str] | None) -> tuple[str, ...]:
    """The values of --host-maddr, the default where none is given."""
    return several(values) or DEFAULT_HOST_MADDRS


def parse_generation_config(text: str) -> str:
    """Return the value of --generation-config. Raises `UsageError`."""
    if text not in (AUTO, NONE):
        raise UsageError(f"--generation-config must be {AUTO} or {NONE}, not {text!r}.")
    return text


def parse_role(text: str) -> Role:
    """Return the role of that name. Raises `UsageError`."""
    if text not in set(Role):
        raise UsageError(f"--role must be one of {', '.join(Role)}, not {text!r}.")
    return Role(text)
