"""The swarm's own parts: repeatable identities and nonces, and members that come and go."""

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity, numbered_nonces
from cosine_protocol.errors import GenerationFailed


def test_peers_and_nonces_are_the_same_in_every_run() -> None:
    assert numbered_identity(3).peer_id == numbered_identity(3).peer_id != numbered_identity(4).peer_id
    first, again = numbered_nonces("a"), numbered_nonces("a")
    said = [first() for _ in range(3)]
    assert said == [again() for _ in range(3)]
    assert len(set(said)) == 3
    assert numbered_nonces("b")() not in said


def test_a_killed_member_is_gone_for_those_who_come_later() -> None:
    async def run() -> str:
        async with SimulatedSwarm() as swarm:
            first = await swarm.verifier()
            await first.kill()
            assert first.is_killed
            with pytest.raises(GenerationFailed, match="no such peer"):
                await (await swarm.client()).generate("hi", max_new_tokens=3)
            again = await swarm.verifier(identity=first.identity)
            generation = await (await swarm.client()).generate("hi", max_new_tokens=3)
            assert generation.verifiers[0].peer_id == again.identity.peer_id == first.identity.peer_id
            return generation.text

    assert len(run_virtual(run())) == 3
