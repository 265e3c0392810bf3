"""`cosine-node ban`: peers that this user's nodes and clients do not talk to, also in later runs."""

import json
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cosine_node.cli.options import AsJson
from cosine_node.cli.printing import printable
from cosine_protocol.errors import UsageError

if TYPE_CHECKING:
    from cosine_p2p.denied_peers import Ban

DAY_S: Final = 86_400.0
DEFAULT_DAYS: Final = 30.0
"""A choice: bans are of peer ids, which cost nothing to make, so one that lasts for ever gains nothing."""


def ban(
    peer: Annotated[
        str | None, typer.Argument(metavar="[PEER]", help="A peer id; without one bans are shown.")
    ] = None,
    days: Annotated[float, typer.Option(metavar="DAYS", help="How long the ban lasts.")] = DEFAULT_DAYS,
    why: Annotated[str, typer.Option(metavar="TEXT", help="The reason, to be shown later.")] = "by hand",
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
            bans.ban(peer_id, until_s=time.time() + min(days, 36_500.0) * DAY_S, why=why)
    banned = bans.read().values()
    if as_json:
        sys.stdout.write(json.dumps({"bans": bans_as_object(banned)}) + "\n")
    else:
        lines = [f"{ban.peer_id}  {printable(told_of(ban))}" for ban in banned] or ["Nobody is banned."]
        sys.stdout.write("\n".join(lines) + "\n")


def bans_as_object(bans: "Iterable[Ban]") -> dict[str, dict[str, str | int]]:
    """Bans for machines, by peer id."""
    return {ban.peer_id: {"until": _until(ban), "why": ban.why, "floods": ban.floods} for ban in bans}


def told_of(ban: "Ban") -> str:
    """The end of a ban and its reason, for people."""
    return f"until {_until(ban)}: {ban.why}"


def _until(ban: "Ban") -> str:
    return datetime.fromtimestamp(ban.until_s, UTC).isoformat(timespec="minutes")
