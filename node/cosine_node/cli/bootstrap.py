"""`cosine-node bootstrap`: a node that keeps the DHT and relays, and serves no model."""

import json
import sys

from cosine_node.cli.options import (
    AnnounceMaddrs,
    AsJson,
    DeniedPeers,
    HostMaddrs,
    IdentityFile,
    InitialPeers,
    LogFormat,
    Network,
    SwarmFile,
    access_of,
    listening_maddrs,
    several,
)
from cosine_node.terminal.events import telling
from cosine_node.terminal.interrupts import run_until_stopped
from cosine_p2p.transport.config import DEFAULT_NETWORK

# --------------------
# `cosine-node identity`: show this machine's peer id, creating its key file if there is none.


def identity(identity: IdentityFile = None, as_json: AsJson = False) -> None:
    """Show the peer id of a key file, which is created if it does not exist."""
    from cosine_p2p.storage.identity_file import default_identity_file, load_identity

    file = identity or default_identity_file()
    peer_id = load_identity(file).peer_id
    text = json.dumps({"peer_id": peer_id, "file": str(file)}) if as_json else f"{peer_id}\n  {file}"
    sys.stdout.write(text + "\n")


# --------------------


def bootstrap(
    initial_peers: InitialPeers = None,
    network: Network = DEFAULT_NETWORK,
    swarm: SwarmFile = None,
    deny: DeniedPeers = None,
    identity: IdentityFile = None,
    host_maddr: HostMaddrs = None,
    announce_maddr: AnnounceMaddrs = None,
    log_format: LogFormat = "pretty",
    as_json: AsJson = False,
) -> None:
    """Keep the DHT and relay for others until interrupted."""
    from cosine_node.serving.node import run_bootstrap
    from cosine_node.serving.node_options import NetworkOptions

    options = NetworkOptions(
        access=access_of(network, swarm, deny),
        identity_file=identity,
        initial_peers=several(initial_peers),
        host_maddrs=listening_maddrs(host_maddr),
        announce_maddrs=several(announce_maddr),
    )
    with telling(log_format, as_json=as_json) as emit:
        run_until_stopped(lambda stop: run_bootstrap(options, emit, stop))
