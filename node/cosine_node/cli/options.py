"""Options that several commands share, each with its environment variable, and how they are read."""

from pathlib import Path
from typing import Annotated, Final

import typer

from cosine_p2p.transport.config import DEFAULT_HOST_MADDRS
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role

# The embedded models: a node runs with them before its owner has chosen any.
DEFAULT_TARGET: Final = "zoo:target"
DEFAULT_DRAFTER: Final = "zoo:draft-general"

# Options of the network.
InitialPeers = Annotated[
    list[str] | None,
    typer.Option(envvar="COSINE_INITIAL_PEERS", help="Address of a node of the network; may be repeated."),
]
Network = Annotated[str, typer.Option(envvar="COSINE_NETWORK", help="Name of the network.")]
IdentityFile = Annotated[
    Path | None, typer.Option(envvar="COSINE_IDENTITY", help="Key file; created if it does not exist.")
]
HostMaddrs = Annotated[
    list[str] | None,
    typer.Option("--host-maddr", envvar="COSINE_HOST_MADDR", help="Address to listen on; may be repeated."),
]
AnnounceMaddrs = Annotated[
    list[str] | None,
    typer.Option(
        "--announce-maddr", envvar="COSINE_ANNOUNCE_MADDR", help="Address others shall dial; may be repeated."
    ),
]
Relays = Annotated[
    list[str] | None,
    typer.Option("--relay", envvar="COSINE_RELAY", help="Relay for a node behind NAT; may be repeated."),
]

# Options of the model that a node serves.
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        envvar="COSINE_MODEL",
        help="zoo:NAME, a folder, a Hugging Face id, or ngram; may be repeated for several drafters.",
    ),
]
TargetName = Annotated[
    str | None, typer.Option(envvar="COSINE_TARGET", help="Target drafted for; for a verifier its public name.")
]
Device = Annotated[str, typer.Option(envvar="COSINE_DEVICE", help="auto, cpu, cuda, cuda:0, mps")]
Dtype = Annotated[str, typer.Option(envvar="COSINE_DTYPE", help="auto, float32, bfloat16, float16")]
Quantize = Annotated[
    str | None,
    typer.Option(
        envvar="COSINE_QUANTIZE", help="int8, or int4 on CUDA: hold weights in fewer bits; needs torchao."
    ),
]

# Options of clients.
Target = Annotated[
    str,
    typer.Option(envvar="COSINE_TARGET", help="Target model: zoo:NAME, a folder, or a Hugging Face id[@DIGEST]."),
]
TrustedPeers = Annotated[list[str] | None, typer.Option(help="Only these peers; may be repeated.")]

# Options of the output.
LogFormat = Annotated[
    str, typer.Option(envvar="COSINE_LOG_FORMAT", help="pretty, or json for one event a line on stdout.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, all else on stderr.")]


def several(values: list[str] | None) -> tuple[str, ...]:
    """The values of a repeatable option."""
    return tuple(values or ())


def listening_maddrs(values: list[str] | None) -> tuple[str, ...]:
    """The values of --host-maddr, the default where none is given."""
    return several(values) or DEFAULT_HOST_MADDRS


def parse_role(text: str) -> Role:
    """Return the role of that name. Raises `UsageError`."""
    if text not in set(Role):
        raise UsageError(f"--role must be drafter or verifier, not {text!r}.")
    return Role(text)
