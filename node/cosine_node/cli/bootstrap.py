"""`cosine-node bootstrap`: a node that keeps the DHT and relays, and serves no model."""

from cosine_node.cli.events import telling
from cosine_node.cli.node_loop import run_until_stopped
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
from cosine_p2p.transport.config import DEFAULT_NETWORK


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
    from cosine_node.node import run_bootstrap
    from cosine_node.node_options import NetworkOptions

    options = NetworkOptions(
        access=access_of(network, swarm, deny),
        identity_file=identity,
        initial_peers=several(initial_peers),
        host_maddrs=listening_maddrs(host_maddr),
        announce_maddrs=several(announce_maddr),
    )
    with telling(log_format, as_json=as_json) as emit:
        run_until_stopped(lambda stop: run_bootstrap(options, emit, stop))
