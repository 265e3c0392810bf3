"""The way into a network of a command that asks once: light where it can be, and past peers that are gone."""

import logging
import os
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cosine_p2p.access import Access
    from cosine_p2p.client import AsyncClient
    from cosine_p2p.network import NetworkSwarm
    from cosine_p2p.request.options import ClientOptions
    from cosine_p2p.text.target import Target
    from cosine_p2p.transport.patience import Note

LOG = logging.getLogger(__name__)


def client_that_asks_once(
    initial_peers: tuple[str, ...], options: "ClientOptions", *, note: "Note" = LOG.warning
) -> "AsyncClient":
    """A client of a command, which goes on from what earlier ones measured; `note` takes what it waits for.

    Raises `UsageError`.
    """
    from cosine_p2p.access import Access
    from cosine_p2p.client import AsyncClient
    from cosine_p2p.directory.peer_file import PeerFile
    from cosine_p2p.saved_state import TrialFile
    from cosine_p2p.text.target import Target
    from cosine_p2p.trust.evidence import EvidenceFile

    named = options.get("target")
    target = None if named is None else Target.parse(named)
    join = joining_once(initial_peers, Access.of(options), target, note=note)
    trials, peers, evidence = TrialFile(), PeerFile(), EvidenceFile()
    return AsyncClient(join=join, trial_file=trials, peer_file=peers, evidence_file=evidence, **options)


def joining_once(
    initial_peers: tuple[str, ...],
    access: "Access",
    target: "Target | None" = None,
    *,
    note: "Note" = LOG.warning,
) -> "Callable[[], Awaitable[NetworkSwarm]]":
    """The function by which the command joins, that of a client with its target; `note` takes what it waits for.

    The light transport needs no daemon and is there sooner; the full one is taken where `COSINE_TRANSPORT` says so
    or where an address is not one that the light one can dial. Raises `UsageError`.
    """
    from cosine_p2p.directory.known_peers import KnownPeers
    from cosine_p2p.directory.known_records import KnownRecords
    from cosine_p2p.network import TRANSPORT_VARIABLE, TransportKind, joining
    from cosine_p2p.transport.addresses import parse_address

    def may_be_light(maddr: str) -> bool:
        try:
            return parse_address(maddr).is_plain_tcp
        except ValueError:
            # Either transport says what is wrong with it.
            return True

    # A user who names peers means their swarm: nobody that was met in another one may be asked instead.
    swarm = " ".join((access.network, *sorted(initial_peers)))
    has_light = find_spec("libp2p") is not None and all(map(may_be_light, initial_peers))
    return joining(
        initial_peers,
        access=access,
        tokenizer_folder=target.folder if target is not None else None,
        transport=TransportKind.LIGHT if has_light and not os.environ.get(TRANSPORT_VARIABLE) else None,
        known_peers=KnownPeers(swarm),
        known_records=KnownRecords(swarm, target.name, clock=time.time) if target is not None else None,
        note=note,
    )
