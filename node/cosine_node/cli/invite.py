"""`cosine-node invite`: a link and a QR code that let others join a network."""

import json
import math
import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from cosine_node.cli.options import AsJson, InitialPeers, Network, SwarmFile, several, takes_options
from cosine_p2p.access import Access
from cosine_p2p.invitation import Invitation, follow_invitations
from cosine_p2p.transport.addresses import Reach
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_p2p.transport.reach import reach_at
from cosine_protocol.errors import UsageError

DEFAULT_DAYS: Final = 7.0
QUIET_ZONE: Final = 2
"""Width of the light margin of a QR code in modules; readers find codes with less than the standard's four."""
NOT_FAR: Final = {
    Reach.LOOPBACK: "Only this machine reaches these addresses.",
    Reach.PRIVATE: "Only machines of this local network reach these addresses.",
}


@takes_options
def invite(
    initial_peers: InitialPeers = None,
    network: Network = DEFAULT_NETWORK,
    swarm: SwarmFile = None,
    days: Annotated[
        float, typer.Option(metavar="DAYS", help="Days for which the invitation is valid; 0 for ever.")
    ] = DEFAULT_DAYS,
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
    nearest = min((reach_at(maddr) for maddr in addresses), default=Reach.NOBODY)
    lines = [
        f"Valid until {invitation.last_day}." if invitation.last_day else "Valid for ever.",
        *([NOT_FAR[nearest]] if nearest in NOT_FAR else []),
        *(["Each member also needs a certificate: `cosine-node swarm admit`."] if invitation.is_private else []),
        "Others pass the link to any command: cosine-node join --role drafter --initial-peers LINK",
    ]
    sys.stderr.write("".join(f"  {line}\n" for line in lines))
