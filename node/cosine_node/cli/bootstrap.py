"""The ways into a network: `bootstrap`, a node that serves the DHT and relays alone; `invite`; `identity`."""

import json
import math
import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from cosine_node.cli.options import (
    AsJson,
    DeniedPeers,
    IdentityFile,
    InitialPeers,
    LogFormat,
    Network,
    Place,
    SwarmFile,
    several,
    takes_options,
)
from cosine_node.terminal.events import telling
from cosine_node.terminal.interrupts import run_until_stopped
from cosine_p2p.access import Access
from cosine_p2p.invitation import Invitation, follow_invitations
from cosine_p2p.storage.identity_file import default_identity_file, load_identity
from cosine_p2p.transport.addresses import Reach
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_p2p.transport.reach import reach_at
from cosine_protocol.errors import UsageError

INVITED_DAYS: Final = 7.0
QUIET_ZONE: Final = 2
"""Width of the light margin of a QR code in modules; readers find codes with less than the standard's four."""
NOT_FAR: Final = {
    Reach.LOOPBACK: "Only this machine reaches these addresses.",
    Reach.PRIVATE: "Only machines of this local network reach these addresses.",
}


@takes_options
def bootstrap(
    place: Place,
    deny: DeniedPeers = None,
    log_format: LogFormat = "pretty",
    as_json: AsJson = False,
) -> None:
    """Keep the DHT and relay for others until interrupted."""
    from cosine_node.serving.node import run_bootstrap

    options = place.network_options(deny)
    with telling(log_format, as_json=as_json) as emit:
        run_until_stopped(lambda stop: run_bootstrap(options, emit, stop))


def identity(identity: IdentityFile = None, as_json: AsJson = False) -> None:
    """Show the peer id of a key file, which is created if it does not exist."""
    file = identity or default_identity_file()
    peer_id = load_identity(file).peer_id
    text = json.dumps({"peer_id": peer_id, "file": str(file)}) if as_json else f"{peer_id}\n  {file}"
    sys.stdout.write(text + "\n")


@takes_options
def invite(
    initial_peers: InitialPeers = None,
    network: Network = DEFAULT_NETWORK,
    swarm: SwarmFile = None,
    days: Annotated[
        float, typer.Option(metavar="DAYS", help="Days for which the invitation is valid; 0 for ever.")
    ] = INVITED_DAYS,
    as_json: AsJson = False,
) -> None:
    """Print a link and a QR code for others, who give it to any command as --initial-peers.

    It tells the addresses and the name of the network. A private swarm also needs a certificate for each member.
    """
    if not (math.isfinite(days) and 0 <= days <= 3660):
        raise UsageError("--days must be between 0 and 3660.")
    addresses, access = follow_invitations(several(initial_peers), Access.parse(network=network, swarm=swarm))
    if not addresses:
        raise UsageError(
            "Give the address of a node that others reach with --initial-peers; nodes print theirs when they are "
            "ready."
        )
    invitation = Invitation(
        addresses=addresses,
        network=access.network,
        is_private=access.swarm_file is not None,
        last_day=(datetime.now(UTC) + timedelta(days=days)).date() if days else None,
    )
    link = invitation.link
    if as_json:
        shown = {
            "link": link,
            "addresses": list(addresses),
            "network": invitation.network,
            "last_day": invitation.last_day and invitation.last_day.isoformat(),
        }
        sys.stdout.write(json.dumps(shown) + "\n")
        return
    if sys.stdout.isatty():
        import segno

        segno.make(link, micro=False, error="l").terminal(sys.stdout, compact=True, border=QUIET_ZONE)
    sys.stdout.write(f"{link}\n")
    sys.stdout.flush()
    nearest = min(map(reach_at, addresses))
    lines = [
        f"Valid until {invitation.last_day}." if invitation.last_day else "Valid for ever.",
        *([NOT_FAR[nearest]] if nearest in NOT_FAR else []),
        *(["Each member also needs a certificate: `cosine-node swarm admit`."] if invitation.is_private else []),
        "Others pass the link to any command: cosine-node join --role drafter --initial-peers LINK",
    ]
    sys.stderr.write("".join(f"  {line}\n" for line in lines))
