"""Tests of private swarms."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cosine_lab.simulation.swarm import SimulatedMember, SimulatedSwarm, numbered_identity
from cosine_node.serving.discover_service import DiscoverService
from cosine_node.serving.status_service import StatusService
from cosine_node.verifier.service import VerifierService
from cosine_p2p.transport.channel import Channel
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_protocol.audit import AUDIT, AskAudit
from cosine_protocol.codec import MESSAGES, Message
from cosine_protocol.discover import DISCOVER, STATUS, AskRecords, AskStatus
from cosine_protocol.draft import DRAFT, Start
from cosine_protocol.errors import ErrorCode, GenerationFailed, PeerLost
from cosine_protocol.identity import Identity, Signed
from cosine_protocol.stage import STAGE
from cosine_protocol.stream import Error
from cosine_protocol.verify import VERIFY, Open, Pacing
from cosine_protocol.weights import WEIGHTS
from tests.cosine_p2p.private_swarm import DAY_S, NOW_S, PrivateSwarm
from tests.node.peers import request_of
from tests.scenes import as_test, in_virtual_time
from tests.swarm.reference import draft_engine, greedy_text, target_engine

TOKENS = 60
PROMPT, EXPECTED = greedy_text("private", TOKENS)
STRANGER = numbered_identity(99)


@in_virtual_time
async def _played(play: Callable[..., Awaitable[None]]) -> None:
    """Run a scene with a verifier and a drafter that serve every protocol, and clients admitted for a day."""
    private = PrivateSwarm()
    nodes = {numbered_identity(number).peer_id for number in (1, 2)}

    def gate_of(identity: Identity) -> PeerGate:
        if identity.peer_id == STRANGER.peer_id:
            return PeerGate()
        days = 9 if identity.peer_id in nodes else 1
        return PeerGate(private.member(identity.peer_id, lifetime_s=days * DAY_S))

    async with SimulatedSwarm(gate_of=gate_of) as swarm:
        verifier = await swarm.verifier(target_engine())
        drafter = await swarm.drafter(draft_engine(0.8, 1))

        async def records(cell: str) -> list[bytes]:
            return [b"a record"]

        for member in (verifier, drafter):
            await member.transport.serve(DISCOVER, DiscoverService(records).handle)
            await member.transport.serve(STATUS, StatusService(lambda: (b"a record", 0, 0)).handle)
        assert isinstance(verifier.service, VerifierService)
        await verifier.transport.serve(AUDIT, verifier.service.audits.handle)
        await play(swarm, private, verifier, drafter)


in_private = as_test(_played, given=4)


def questions(client: Identity) -> dict[str, Message]:
    request = request_of(client.peer_id)
    return {
        VERIFY: Open(1, request, (), Pacing.FREE, ()),
        DRAFT: Start(1, request, ()),
        DISCOVER: AskRecords(1, "cell"),
        STATUS: AskStatus(1),
        AUDIT: AskAudit(1, request, (1,), client.peer_id, Signed(b"", bytes(64))),
    }


@in_private
async def test_a_stranger_gets_one_error_and_nothing_else_on_every_protocol(
    swarm: SimulatedSwarm, private: PrivateSwarm, verifier: SimulatedMember, drafter: SimulatedMember
) -> None:
    transport = swarm.join(STRANGER)
    asked = questions(STRANGER)
    both = [verifier, drafter]
    homes = {VERIFY: [verifier], DRAFT: [drafter], DISCOVER: both, STATUS: both, AUDIT: [verifier]}
    # No node here serves stages or weights.
    assert asked.keys() == homes.keys() == MESSAGES.keys() - {STAGE, WEIGHTS}
    for protocol, members in homes.items():
        for member in members:
            stream = await transport.dial(member.identity.peer_id, protocol)
            async with Channel(stream, protocol) as channel:
                channel.post(asked[protocol])
                error = await channel.receive()
                assert isinstance(error, Error)
                assert (error.number, error.code) == (0, ErrorCode.NOT_ADMITTED)
                assert not channel.features and not channel.greeted.is_set()
                with pytest.raises(PeerLost, match="the stream ended"):
                    await channel.receive()
    assert verifier.service.requests == drafter.service.requests == 0
    await transport.close()


@in_private
async def test_a_request_ends_with_the_certificate_of_its_client(
    swarm: SimulatedSwarm, private: PrivateSwarm, verifier: SimulatedMember, drafter: SimulatedMember
) -> None:
    client = await swarm.client()
    tokens = 0
    with pytest.raises(GenerationFailed, match="expired"):
        async for chunk in client.stream(PROMPT, max_new_tokens=2000):
            tokens += len(chunk.token_ids)
            if tokens > TOKENS:
                private.clock.now_s = NOW_S + DAY_S + 1
    assert tokens > TOKENS
    await asyncio.sleep(10)
    assert verifier.service.requests == 0


@in_private
async def test_who_is_revoked_loses_its_streams_once_the_list_arrives(
    swarm: SimulatedSwarm, private: PrivateSwarm, verifier: SimulatedMember, drafter: SimulatedMember
) -> None:
    revoked, other = numbered_identity(20), numbered_identity(21)
    client = await swarm.client(identity=revoked)
    done = await client.generate(PROMPT, max_new_tokens=TOKENS)
    assert done.token_ids == EXPECTED and done.swarm.accepted
    # Another member knows the list first, and passes it on with its own request.
    gate = PeerGate(private.member(other.peer_id, revocations=private.revoke(revoked.peer_id)))
    stream = await swarm.network.join(other.peer_id, gate).dial(verifier.identity.peer_id, STATUS)
    stream.close()
    with pytest.raises(GenerationFailed, match="revoked"):
        await client.generate(PROMPT, max_new_tokens=TOKENS)
