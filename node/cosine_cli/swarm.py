"""`cosine-node swarm` manages private swarms, and `cosine-node ban` the banned peers of this user."""

import json
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cosine_p2p.trust.denied_peers import Ban, BanFile, parse_denied
from cosine_p2p.trust.founded_swarm import FoundedSwarm
from cosine_p2p.trust.membership import read_swarm_file
from cosine_protocol.errors import UsageError
from cosine_protocol.membership import MAX_CERTIFICATE_S, read_certificate, read_revocations
from cosine_terminal.help_screen import actions, everyday
from cosine_terminal.options import AsJson
from cosine_terminal.printing import printable

DAY_S: Final = 86_400.0
DEFAULT_DAYS: Final = 30.0
"""A lost key is valid for a month at most, and a founder renews certificates twelve times a year."""


_FOLDER: Final = everyday(
    "--folder",
    "--out",
    metavar="FOLDER",
    envvar="COSINE_SWARM_FOLDER",
    help="The founder's folder. It holds the swarm's key and the list of its members.",
)
Folder = Annotated[Path, _FOLDER]
Member = Annotated[str, typer.Argument(metavar="PEER_ID", help="The member.")]


def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the swarm.")],
    folder: Folder,
    as_json: AsJson = False,
) -> None:
    """Create a swarm in a folder, which holds its key."""
    made = FoundedSwarm.create(folder, name)
    shown = {"swarm": made.swarm_id, "name": made.name, "folder": str(folder)}
    note = f"  {printable(made.name)}, its key is in {folder}; its holder can admit members"
    _tell(shown, as_json=as_json, lines=(made.swarm_id, note))


def admit(
    peer_id: Member,
    folder: Folder,
    days: Annotated[
        float, everyday(metavar="DAYS", help="Days for which it is valid, at most 366.")
    ] = DEFAULT_DAYS,
    as_json: AsJson = False,
) -> None:
    """Print a certificate for a member, a line of its swarm file."""
    lifetime_s = certificate_lifetime_s(days)
    line = FoundedSwarm.open(folder).admit(peer_id, lifetime_s=lifetime_s, now_s=time.time())
    _tell({"peer_id": peer_id, "line": line}, as_json=as_json, lines=(line,))


def certificate_lifetime_s(days: float) -> float:
    """The lifetime of a member's certificate by --days. Raises `UsageError`."""
    if not 0 < days * DAY_S <= MAX_CERTIFICATE_S:
        raise UsageError("--days must be above 0 and at most 366.")
    return days * DAY_S


def revoke(peer_id: Member, folder: Folder, as_json: AsJson = False) -> None:
    """Print a revocation of a member, a line for every swarm file."""
    line = FoundedSwarm.open(folder).revoke(peer_id, now_s=time.time())
    _tell({"peer_id": peer_id, "line": line}, as_json=as_json, lines=(line,))


def show_swarm(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A swarm file. Default: the founder's folder.")
    ] = None,
    folder: Annotated[Path | None, _FOLDER] = None,
    as_json: AsJson = False,
) -> None:
    """Show the members of a swarm."""
    if file is not None:
        return _tell(_papers_shown(file), as_json=as_json)
    if folder is None:
        raise UsageError("Name a swarm file, or the founder's folder with --folder.")
    founded = FoundedSwarm.open(folder)
    members = [
        _member(peer_id, one.ends_at_s, is_revoked=one.is_revoked) for peer_id, one in founded.members.items()
    ]
    _tell({"swarm": founded.swarm_id, "name": founded.name, "members": members}, as_json=as_json)


swarm = actions(
    "swarm",
    "Manage a private swarm, whose nodes serve only its members.",
    {"create": create, "admit": admit, "revoke": revoke, "show": show_swarm},
)


def _member(peer_id: str, ends_at_s: float, *, is_revoked: bool) -> dict[str, str | None]:
    state = "revoked" if is_revoked else "expired" if time.time() > ends_at_s else "member"
    return {"peer_id": peer_id, "ends": _date(ends_at_s), "state": state}


def _papers_shown(file: Path) -> dict[str, Any]:
    papers = read_swarm_file(file)
    newest = read_revocations(papers.revocations[-1]) if papers.revocations else None
    revoked = {one.member: one.serial for one in newest.revoked} if newest else {}
    held = [read_certificate(each) for each in papers.certificates]
    members: list[dict[str, str | None]] = [
        _member(one.member, one.ends_at_s, is_revoked=one.serial <= revoked.get(one.member, -1)) for one in held
    ]
    # A revocation does not contain the end of the certificate.
    members += [
        {"peer_id": member, "ends": None, "state": "revoked"}
        for member in revoked.keys() - {m.member for m in held}
    ]
    return {"swarm": papers.swarm_id, "name": papers.name, "members": members}


def _date(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="minutes")


def _tell(shown: dict[str, Any], *, as_json: bool, lines: tuple[str, ...] | None = None) -> None:
    if as_json:
        sys.stdout.write(json.dumps(shown) + "\n")
        return
    if lines is None:
        members = (
            f"  {one['peer_id']}  {one['state']}{', until ' + one['ends'] if one['ends'] else ''}"
            for one in shown["members"]
        )
        lines = (shown["swarm"], f"  {printable(shown['name'])}", *members)
    sys.stdout.write("\n".join(lines) + "\n")


def ban(
    peer: Annotated[
        str | None, typer.Argument(metavar="[PEER]", help="Peer id to ban. Default: show the bans.")
    ] = None,
    days: Annotated[float, everyday(metavar="DAYS", help="Days for which the ban lasts.")] = DEFAULT_DAYS,
    why: Annotated[str, everyday(metavar="TEXT", help="Reason of the ban.")] = "by hand",
    lift: Annotated[bool, everyday("--lift", help="End the ban of this peer.")] = False,
    as_json: AsJson = False,
) -> None:
    """Ban a peer for some days.

    All nodes and clients of this user then refuse it, including running ones.
    """
    bans = BanFile()
    if peer is None:
        if lift:
            raise UsageError("Name the peer whose ban ends: `cosine-node ban PEER_ID --lift`.")
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
        lines = [f"{ban.peer_id}  {printable(ban_text(ban))}" for ban in banned] or ["No peer is banned."]
        sys.stdout.write("\n".join(lines) + "\n")


def bans_as_object(bans: Iterable[Ban]) -> dict[str, dict[str, str | int]]:
    return {ban.peer_id: {"until": _date(ban.until_s), "why": ban.why, "floods": ban.floods} for ban in bans}


def ban_text(ban: Ban) -> str:
    return f"until {_date(ban.until_s)}: {ban.why}"
