"""Newcomers find a swarm despite peers that invent DHT ids near its records, or many records."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_p2p import AsyncClient, Generation
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_protocol.records import cell_name, seal_record
from tests.cosine_p2p.samples import identity_of, record_of
from tests.cosine_p2p.transport.full_nodes import Swarm as Strangers
from tests.cosine_p2p.transport.full_nodes import plant
from tests.e2e.conftest import Swarm
from tests.e2e.reference import PROMPT, encoded, greedy
from tests.thoroughness import soak_rest

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(900)]

TARGET: Final = "zoo:target"
TOKENS: Final = 24
IDS: Final = 40
SYBILS: Final = 704
NEWCOMERS: Final = 5
ATTACK_S: Final = 3.0
SLACK_S: Final = 5.0
"""Allowance for a busy machine."""


async def newcomer(swarm: Swarm) -> tuple[Generation, float, int]:
    """The text of a new client, its seconds from the start, and its number of drafters."""
    began_s = time.monotonic()
    async with AsyncClient([swarm.boot.maddr], memory=False, dtype="float32", max_drafters=8) as client:
        generation = await client.generate(PROMPT, max_new_tokens=TOKENS)
    return generation, time.monotonic() - began_s, len(generation.swarm.drafters)


async def ended(attacking: "asyncio.Future[None]") -> None:
    """End an attack. Its calls are hivemind's own, which may lose a cancellation (`GatedStub`)."""
    while not attacking.done():
        attacking.cancel()
        await asyncio.wait([attacking], timeout=0.1)


async def invent_ids(stranger: Any, swarm: Swarm) -> None:
    """Meet each node repeatedly, each time with another id near the records of verifiers or drafters."""
    from cosine_p2p.transport.full.library import DHTID, PeerID

    keys = [
        DHTID.generate(source=cell_name(network=DEFAULT_NETWORK, role=role, target=TARGET, prefix=""))
        for role in ("verifier", "drafter")
    ]
    while True:
        for number in range(1, IDS + 1):
            node_id = DHTID(int(keys[number % 2]) ^ number)
            stranger.protocol.routing_table.add_or_update_node(node_id, stranger.peer_id)
            stranger.protocol.node_info.node_id = node_id.to_bytes()
            for node in (swarm.boot, swarm.verifier, *swarm.drafters):
                await stranger.protocol.call_ping(PeerID.from_base58(node.peer_id))
        await asyncio.sleep(0.1)


async def invent_records(stranger: Any, swarm: Swarm) -> None:
    """Bring every node the records of drafters that do not exist."""
    cell = cell_name(network=DEFAULT_NETWORK, role="drafter", target=TARGET, prefix="")
    for number in range(100, 100 + SYBILS):
        sybil = identity_of(number)
        sealed = seal_record(record_of(sybil, now_s=time.time(), target=TARGET), sybil, key=cell)
        given = {"content": (cell, sealed), "subkey": sybil.peer_id, "cell": cell}
        for node in (swarm.boot, swarm.verifier):
            await plant(stranger, node, expires_at_s=time.time() + 200, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("attack", soak_rest([invent_ids, invent_records]))
def test_newcomers_find_the_swarm_and_get_its_text(swarm: Swarm, attack: Any, tmp_path: Path) -> None:
    async def run() -> None:
        quiet = [await newcomer(swarm) for _ in range(2)]
        async with contextlib.AsyncExitStack() as stack:
            strangers = Strangers(tmp_path, stack)
            strangers.boot = (swarm.boot.maddr,)
            attacking = asyncio.ensure_future(attack(await strangers.stranger(), swarm))
            await asyncio.sleep(ATTACK_S)
            busy = [await newcomer(swarm) for _ in range(NEWCOMERS)]
            if attacking.done():
                attacking.result()
            await ended(attacking)
        # A text may be over before its drafters are found.
        assert any(drafters for _, _, drafters in busy)
        for generation, seconds, _ in busy:
            assert generation.token_ids == greedy(encoded(PROMPT), TOKENS)
            assert generation.swarm.verifiers[0].peer_id == swarm.verifier.peer_id
            assert seconds < 2 * max(slowest for _, slowest, _ in quiet) + SLACK_S

    asyncio.run(run())
