"""`cosine-node invite`: links that lead into a network; and `identity`, the peer id of a key file."""

import json
import math
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_bytes
from shutil import get_terminal_size
from typing import Annotated, Final

from cosine_cli.swarm import certificate_lifetime_s
from cosine_p2p.access import Access
from cosine_p2p.invitation import (
    INVITED_DAYS,
    MAX_INVITATION_ADDRESSES,
    Invitation,
    NewMember,
    follow_invitations,
)
from cosine_p2p.storage.identity_file import default_identity_file, load_identity
from cosine_p2p.transport.addresses import Scope
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_p2p.transport.lan import find_neighbours
from cosine_p2p.transport.reach import scope_at
from cosine_p2p.trust.founded_swarm import FoundedSwarm
from cosine_protocol.errors import UsageError
from cosine_protocol.identity import Identity
from cosine_protocol.membership import CERTIFICATE_LINE, from_line
from cosine_terminal.help_screen import everyday
from cosine_terminal.interrupts import run_interruptibly
from cosine_terminal.options import (
    AsJson,
    IdentityFile,
    InitialPeers,
    Lan,
    Network,
    SwarmFile,
    several,
    takes_options,
)

SEED_BYTES: Final = 32
"""Of the key of a new member."""
QUIET_ZONE: Final = 2
"""Width of the light margin of a QR code in modules; readers find codes with less than the standard's four."""
NOT_FAR: Final = {
    Scope.LOOPBACK: "Only this machine reaches these addresses.",
    Scope.PRIVATE: "Only machines of this local network reach these addresses.",
}


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
    lan: Lan = None,
    folder: Annotated[
        Path | None,
        everyday(
            metavar="FOLDER",
            envvar="COSINE_SWARM_FOLDER",
            help="Folder of a private swarm's founder. The link then admits one new member.",
        ),
    ] = None,
    days: Annotated[
        float, everyday(metavar="DAYS", help="Days for which the invitation is valid; 0 for ever.")
    ] = INVITED_DAYS,
    as_json: AsJson = False,
) -> None:
    """Print a link and a QR code with which others join.

    It tells the addresses and the name of the network; any command takes it as --initial-peers. In a
    private swarm its founder makes one for each member.
    """
    if not (math.isfinite(days) and 0 <= days <= 3660):
        raise UsageError("--days must be between 0 and 3660.")
    access = Access.parse(network=network, swarm=swarm, lan=lan)
    addresses, access = follow_invitations(several(initial_peers), access)
    if not addresses and access.uses_lan:
        name = access.network if folder is None else FoundedSwarm.open(folder).swarm_id
        addresses = run_interruptibly(find_neighbours(name))[:MAX_INVITATION_ADDRESSES]
    if not addresses:
        raise UsageError(
            "Give the address of a node that others reach with --initial-peers; nodes print theirs when they are "
            "ready."
        )
    last_day = (datetime.now(UTC) + timedelta(days=days)).date() if days else None
    is_private = access.swarm_file is not None
    invitation = Invitation(addresses=addresses, network=access.network, is_private=is_private, last_day=last_day)
    if folder is not None:
        invitation = Invitation.admitting(admission_to(folder, access, days=days), addresses)
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
        _show_code(link)
    sys.stdout.write(f"{link}\n")
    sys.stdout.flush()
    sys.stderr.write("".join(f"  {line}\n" for line in _explained(invitation)))


def _explained(invitation: Invitation) -> list[str]:
    """Sentences about an invitation for the user who passes it on."""
    nearest = min(map(scope_at, invitation.addresses))
    lines = [f"Valid until {invitation.last_day}." if invitation.last_day else "Valid for ever."]
    if nearest in NOT_FAR:
        lines.append(NOT_FAR[nearest])
    lines.append("It leads only to these addresses; --host-maddr keeps that of a node.")
    if invitation.admission is not None:
        lines.append("A secret: its holder is that member. It works on one machine at a time.")
    elif invitation.is_private:
        lines.append(
            "Each member also needs a certificate: `cosine-node invite --folder` makes links that have one."
        )
    lines.append("Others run: cosine-node draft LINK, or any command with --initial-peers LINK")
    return lines


def _show_code(link: str) -> None:
    import segno

    code = segno.make(link, micro=False, error="l")
    width = code.symbol_size(border=QUIET_ZONE)[0]
    if width <= get_terminal_size().columns:
        code.terminal(sys.stdout, compact=True, border=QUIET_ZONE)
    else:
        sys.stderr.write(f"  The QR code needs a terminal of {width} columns.\n")


def admission_to(folder: Path, access: Access, *, days: float) -> NewMember:
    """Admit a new member to the private swarm of a founder's folder. Raises `UsageError`."""
    lifetime_s = certificate_lifetime_s(days)
    swarm = FoundedSwarm.open(folder)
    if access.swarm_file is not None and access.network != swarm.swarm_id:
        raise UsageError(f"{folder} and {access.swarm_file} are of two swarms.")
    seed = token_bytes(SEED_BYTES)
    line = swarm.admit(Identity.from_seed(seed).peer_id, lifetime_s=lifetime_s, now_s=time.time())
    return NewMember(seed, from_line(line, prefix=CERTIFICATE_LINE))
