"""The invitation that the page shows: a link over nodes that answer, and its QR code. Pure."""

from collections.abc import Iterable
from contextlib import suppress
from datetime import date
from typing import Final

import segno

from cosine_gateway.body import Json
from cosine_p2p.access import Access
from cosine_p2p.invitation import Invitation
from cosine_p2p.transport.addresses import parse_dialable
from cosine_p2p.transport.reach import best_first, scope_at
from cosine_protocol.records import NodeRecord

MAX_NAMED: Final = 2
"""One stays if the other leaves; the code of more is hard to read from a screen."""


def invitation_facts(records: Iterable[NodeRecord], access: Access, *, last_day: date) -> Json | None:
    """Return an invitation to the network of these nodes and its QR code, or None if no node has an address.

    Peers name their addresses, so only those over plain TCP that end in the owner's peer id are taken.
    """
    named = []
    for record in records:
        for maddr in best_first(record.addresses, local=()):
            end = f"/p2p/{record.peer_id}"
            whole = maddr if maddr.endswith(end) else maddr + end
            with suppress(ValueError):
                if parse_dialable(whole).layers == ("p2p",) and "," not in whole:
                    named.append(whole)
                    break
    if not named:
        return None
    invitation = Invitation(
        addresses=tuple(best_first(named, local=())[:MAX_NAMED]),
        network=access.network,
        is_private=access.swarm_file is not None,
        last_day=last_day,
    )
    code = segno.make(invitation.link, micro=False, error="l")
    return {
        "link": invitation.link,
        "addresses": len(invitation.addresses),
        "network": invitation.network,
        "is_private": invitation.is_private,
        "reach": min(map(scope_at, invitation.addresses)).name.lower(),
        "last_day": last_day.isoformat(),
        "code": ["".join("01"[module] for module in row) for row in code.matrix],
    }
