"""Attacks on real nodes by a process of its own: honest texts are the target's meanwhile, and memory is bounded."""

import asyncio

import pytest

from tests.e2e.attacker import KINDS
from tests.e2e.attacks import attacking, client_of, memory_bytes, seconds_of
from tests.e2e.conftest import Swarm

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

TEXTS = 3
MOST_BYTES = 256 << 20


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_the_targets_while_the_swarm_is_attacked_and_after(swarm: Swarm, kind: str) -> None:
    async def run() -> None:
        async with client_of(swarm) as client:
            await seconds_of(client, 1)
            before = memory_bytes(swarm)
            with attacking(swarm, kind):
                await seconds_of(client, TEXTS)
                # As well for one that comes then.
                async with client_of(swarm) as newcomer:
                    await seconds_of(newcomer, 1)
            await seconds_of(client, 1)
            assert memory_bytes(swarm) - before < MOST_BYTES

    asyncio.run(run())
