"""Options that several commands share, each with its environment variable."""

from pathlib import Path
from typing import Annotated

import typer

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
LogFormat = Annotated[
    str, typer.Option(envvar="COSINE_LOG_FORMAT", help="pretty, or json for one event a line on stdout.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, all else on stderr.")]
Target = Annotated[
    str,
    typer.Option(envvar="COSINE_TARGET", help="Target model: zoo:NAME, a folder, or a Hugging Face id[@DIGEST]."),
]
