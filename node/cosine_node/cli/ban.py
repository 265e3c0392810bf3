"""`cosine-node ban`: peers that this user's nodes and clients do not talk to, also in later runs."""

import json
import sys
import time
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from cosine_node.cli.options import AsJson
from cosine_protocol.errors import UsageError

DAY_S: Final = 86_400.0
DEFAULT_DAYS: Final = 30.0
"""A choice: bans are of peer ids, which cost nothing to make, so one that lasts for ever gains nothing."""


def ban(
    peer: Annotated[
        str | None, typer.Argument(metavar="[PEER]", help="A peer id; without one bans are shown.")
    ] = None,
    days: Annotated[float, typer.Option(metavar="DAYS", help="How long the ban lasts.")] = DEFAULT_DAYS,
    lift: Annotated[bool, typer.Option("--lift", metavar="", help="End the ban of this peer.")] = False,
    as_json: AsJson = False,
) -> None:
    """Ban a peer for a while from all nodes and clients of this user; those that run take it up within seconds."""
    from cosine_p2p.denied_peers import BanFile, parse_denied

    bans = BanFile()
    if peer is None:
        if lift:
            raise UsageError("Say whose ban is to end: `cosine-node ban PEER_ID --lift`.")
    elif lift:
        if not bans.lift(peer):
            raise UsageError(f"{peer} is not banned.")
    elif not days > 0:
        raise UsageError("--days must be above 0.")
    else:
        for peer_id in parse_denied([peer]):
            bans.ban(peer_id, until_s=time.time() + min(days, 36_500.0) * DAY_S)
    banned = {
        peer_id: datetime.fromtimestamp(until_s, UTC).isoformat(timespec="minutes")
        for peer_id, until_s in bans.read().items()
    }
    if as_json:
        sys.stdout.write(json.dumps({"bans": banned}) + "\n")
    else:
        lines = [f"{peer_id}  until {until}" for peer_id, until in banned.items()] or ["Nobody is banned."]
        sys.stdout.write("\n".join(lines) + "\n")
