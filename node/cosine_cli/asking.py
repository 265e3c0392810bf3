"""Joins a network for a single command, with the light transport if possible."""

import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cosine_p2p.access import Access
from cosine_p2p.invitation import follow_invitations
from cosine_p2p.request.options import ClientOptions
from cosine_p2p.transport.addresses import parse_address
from cosine_p2p.trust.evidence import EvidenceFile
from cosine_protocol.records import ALL_TARGETS
from cosine_terminal.waiting import Stage, waiting_for

if TYPE_CHECKING:
    from cosine_p2p.client import AsyncClient
    from cosine_p2p.client_memory import ClientMemory
    from cosine_p2p.network import NetworkSwarm
    from cosine_p2p.survey import Survey
    from cosine_p2p.text.target import Target
    from cosine_p2p.transport.patience import Note

LOG = logging.getLogger(__name__)


def client_that_asks_once(
    initial_peers: tuple[str, ...], options: ClientOptions, *, note: "Note" = LOG.warning
) -> "AsyncClient":
    """A client for one command, with the measurements of earlier commands. Raises `UsageError`.

    `note` is called with what the client waits for.
    """
    from cosine_p2p.client import AsyncClient
    from cosine_p2p.client_memory import ClientMemory
    from cosine_p2p.text.target import Target

    named = options.get("target")
    target = None if named is None else Target.parse(named)
    memory = ClientMemory.of(True)
    join = joining_once(initial_peers, Access.of(options), target, memory=memory, note=note)
    return AsyncClient(join=join, memory=memory, evidence_file=EvidenceFile(), **options)


async def survey_once(initial_peers: tuple[str, ...], access: Access, target: str = ALL_TARGETS) -> "Survey":
    """The nodes of a target in a network, which is left again. Raises `CosineError`."""
    from cosine_p2p.survey import Surveyor, first_survey

    stage = Stage("Looking at the swarm")
    async with waiting_for(stage), AsyncExitStack() as stack:
        swarm = await joining_once(initial_peers, access, note=stage.change)()
        stack.push_async_callback(swarm.close)
        surveyor = Surveyor(swarm, target=target)
        stack.push_async_callback(surveyor.close)
        return await first_survey(surveyor)


def joining_once(
    initial_peers: tuple[str, ...],
    access: Access,
    target: "Target | None" = None,
    *,
    memory: "ClientMemory | None" = None,
    note: "Note" = LOG.warning,
) -> "Callable[[], Awaitable[NetworkSwarm]]":
    """A function that joins the network. `memory` is by default the user's. Raises `UsageError`.

    The light transport starts faster, without a daemon. The full transport is used if `COSINE_TRANSPORT` says so or
    if the light one cannot dial an address.
    """
    from cosine_p2p.client_memory import ClientMemory
    from cosine_p2p.network import TRANSPORT_VARIABLE, TransportKind, joining

    def may_be_light(maddr: str) -> bool:
        try:
            return parse_address(maddr).is_plain_tcp
        except ValueError:
            # Both transports report what is wrong.
            return True

    initial_peers, access = follow_invitations(initial_peers, access)
    has_light = find_spec("libp2p") is not None and all(map(may_be_light, initial_peers))
    return joining(
        initial_peers,
        access=access,
        tokenizer_folder=target.folder if target is not None else None,
        transport=TransportKind.LIGHT if has_light and not os.environ.get(TRANSPORT_VARIABLE) else None,
        memory=memory or ClientMemory.of(True),
        target=target.name if target is not None else ALL_TARGETS,
        note=note,
    )
