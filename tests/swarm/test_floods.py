"""Tests of peers that flood others with messages."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import pytest

from cosine_lab.simulation.records import TARGET
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_p2p.request.results import Generation
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel, serve_channel
from cosine_protocol.codec import Message, encode, encode_frame
from cosine_protocol.draft import DRAFT, Start
from cosine_protocol.errors import ErrorCode
from cosine_protocol.fields import MAX_TEXT_BYTES
from cosine_protocol.records import Role
from cosine_protocol.stream import VERSION, Error, Hello, Ping
from cosine_protocol.verify import VERIFY, Open, Pacing
from tests.node.peers import request_of
from tests.scenes import in_virtual_time
from tests.swarm.reference import draft_engine, greedy_text, in_a_swarm, target_engine

TOKENS: Final = 40
PROMPT, EXPECTED = greedy_text("floods", TOKENS)
FLOODER: Final = numbered_identity(9400)
STREAMS: Final = 4
PAUSE_S: Final = 0.01
"""Virtual time between pieces of a flood."""
PIECE_BYTES: Final = 16_384
SHORT_FLOOD_S: Final = 5.0
"""Replaces `FLOOD_S`, since each second of a flood takes long."""
REQUEST: Final = request_of(FLOODER.peer_id, max_new_tokens=2000)
LARGEST: Final = request_of(FLOODER.peer_id, prompt=tuple(range(32)) * 4000)
FLOODS: Final[dict[str, Message]] = {
    "pings": Ping(3, 1, 1),
    "the largest requests": Open(1, LARGEST, (), Pacing.FREE, ()),
}
"""What a flood of a verifier repeats."""


async def flood(stream: Stream, message: Message) -> None:
    """Send a greeting, then the same message forever."""
    await stream.write(encode_frame(encode(Hello(VERSION, (), "flood"))))
    frame = encode_frame(encode(message))
    while True:
        await stream.write(frame * (PIECE_BYTES // len(frame) + 1))
        await asyncio.sleep(PAUSE_S)


async def ended(attacks: Sequence[asyncio.Task[None]]) -> None:
    for attack in attacks:
        attack.cancel()
    await asyncio.gather(*attacks, return_exceptions=True)


@in_virtual_time
async def generated(flooding: Message | None) -> list[Generation]:
    """Return three texts of an honest client while a peer floods the verifier."""
    async with SimulatedSwarm() as swarm:
        verifier = await swarm.verifier(target_engine())
        await swarm.drafter(draft_engine(0.9))
        client = await swarm.client(timeout_s=60.0, seed=0)
        flooder = swarm.join(FLOODER)
        attacks = [
            asyncio.ensure_future(flood(await flooder.dial(verifier.identity.peer_id, VERIFY), flooding))
            for _ in range(STREAMS)
            if flooding is not None
        ]
        await asyncio.sleep(1.0)
        texts = [await client.generate(PROMPT, max_new_tokens=TOKENS) for _ in range(3)]
        await ended(attacks)
        return texts


@pytest.mark.thorough
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_does_not_delay_the_texts_of_others(name: str) -> None:
    for quiet, busy in zip(generated(None), generated(FLOODS[name]), strict=True):
        assert busy.token_ids == quiet.token_ids == EXPECTED
        assert busy.seconds < 2 * quiet.seconds


class FloodingDrafter:
    """A drafter that announces the best speed and answers each request with a flood."""

    def __init__(self, message_of: Callable[[int], Message]) -> None:
        self._message_of = message_of
        self.attacks: list[asyncio.Task[None]] = []

    async def join(self, swarm: SimulatedSwarm) -> None:
        record = (await swarm.directory.find(Role.DRAFTER, TARGET))[0]
        await swarm.join(FLOODER).serve(DRAFT, self._handle)
        await swarm.directory.announce(replace(record, peer_id=FLOODER.peer_id, pass_us=1), [TARGET])

    async def _handle(self, stream: Stream) -> None:
        def receive(channel: Channel, told: Message) -> None:
            if isinstance(told, Start):
                message = self._message_of(told.number)
                self.attacks += [asyncio.ensure_future(flood(stream, message)) for _ in range(STREAMS)]

        await serve_channel(stream, DRAFT, receive)


@in_a_swarm
async def test_a_flooding_drafter_is_dropped(swarm: SimulatedSwarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosine_p2p.transport.channel.FLOOD_S", SHORT_FLOOD_S)
    await swarm.verifier(target_engine())
    honest = await swarm.drafter(draft_engine(0.9))
    text = "x" * MAX_TEXT_BYTES
    drafter = FloodingDrafter(lambda number: Error(number + 1000, ErrorCode.INTERNAL, text, None))
    await drafter.join(swarm)
    client = await swarm.client(timeout_s=60.0, seed=0)
    now_s = asyncio.get_running_loop().time
    assert (await client.generate(PROMPT, max_new_tokens=TOKENS)).token_ids == EXPECTED
    assert len(drafter.attacks) == STREAMS and not client._memory.failures.avoided(now_s())
    await asyncio.sleep(SHORT_FLOOD_S + 3.0)
    links = (await client._connected()).host.links
    assert links.alive(FLOODER.peer_id, DRAFT) is None
    assert links.alive(honest.identity.peer_id, DRAFT) is not None
    assert client._memory.failures.avoided(now_s()) == {FLOODER.peer_id}
    for _ in range(2):
        done = await client.generate(PROMPT, max_new_tokens=TOKENS)
        assert done.token_ids == EXPECTED and done.swarm.accepted
    assert len(drafter.attacks) == STREAMS
    await ended(drafter.attacks)
