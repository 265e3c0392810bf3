"""Tests of peers that flood others with messages."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from cosine_lab.simulation.records import TARGET
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_p2p.request.results import Generation
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import READ_BURST, READ_RATE, Channel, serve_channel
from cosine_protocol import codec
from cosine_protocol.codec import Message, encode, encode_frame
from cosine_protocol.draft import DRAFT, Node, NodeBlock, Start
from cosine_protocol.errors import ErrorCode
from cosine_protocol.fields import MAX_TEXT_BYTES
from cosine_protocol.records import Role
from cosine_protocol.request import Sampling
from cosine_protocol.stream import VERSION, Error, Hello, Ping
from cosine_protocol.verify import VERIFY, Open, Pacing, Tree
from tests.node.peers import request_of
from tests.scenes import in_virtual_time
from tests.swarm.reference import draft_engine, in_a_swarm, plain_stream, prompt_of, target_engine
from tests.thoroughness import soak_rest

TOKENS: Final = 40
PROMPT: Final = prompt_of(random.Random("floods"))
EXPECTED: Final = plain_stream(PROMPT, Sampling(), tokens=TOKENS)
FLOODER: Final = numbered_identity(9400)
STREAMS: Final = 4
PAUSE_S: Final = 0.01
"""Virtual time between pieces of a flood."""
PIECE_BYTES: Final = 16_384
SHORT_FLOOD_S: Final = 5.0
"""Replaces `FLOOD_S`, since each second of a flood takes long."""
REQUEST: Final = request_of(FLOODER.peer_id, max_new_tokens=2000)
NODES: Final = NodeBlock.of([Node(index - 1, 1, 1.0) for index in range(60)])
LARGEST: Final = request_of(FLOODER.peer_id, prompt=tuple(range(32)) * 4000)
FLOODS: Final[dict[str, tuple[str, Message]]] = {
    "pings at the verifier": (VERIFY, Ping(3, 1, 1)),
    "the largest requests": (VERIFY, Open(1, LARGEST, (), Pacing.FREE, ())),
    "requests of another target": (VERIFY, Open(1, REQUEST, (), Pacing.FREE, ())),
    "trees for nobody": (VERIFY, Tree(1, bytes(16), 0, NODES, bytes(60))),
    "pings at the drafters": (DRAFT, Ping(3, 1, 1)),
    # Last, since each of them is much work here.
    "requests to draft for": (DRAFT, Start(1, REQUEST, ())),
}


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
async def generated(*floods: tuple[str, Message]) -> list[Generation]:
    """Return three texts of an honest client while peers flood the nodes of a swarm."""
    async with SimulatedSwarm() as swarm:
        await swarm.verifier(target_engine())
        for _ in range(2):
            await swarm.drafter(draft_engine(0.9))
        client = await swarm.client(timeout_s=60.0, seed=0)
        flooder = swarm.join(FLOODER)
        attacks = [
            asyncio.ensure_future(flood(await flooder.dial(member.identity.peer_id, protocol), message))
            for protocol, message in floods
            for member in swarm.members
            if (member.role is Role.VERIFIER) == (protocol == VERIFY)
            for _ in range(STREAMS)
        ]
        await asyncio.sleep(1.0)
        texts = [await client.generate(PROMPT, max_new_tokens=TOKENS) for _ in range(3)]
        await ended(attacks)
        return texts


QUIET: Final = generated()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[type]:
    """The number of messages read by all channels, by type."""
    counts: Counter[type] = Counter()

    def counted(frame: bytes) -> Any:
        message = codec.decode(frame)
        counts[type(message)] += 1
        return message

    monkeypatch.setattr("cosine_p2p.transport.channel.decode", counted)
    return counts


@pytest.mark.thorough
@pytest.mark.parametrize("name", soak_rest(FLOODS, 2))
def test_a_flood_is_read_so_much_of_and_honest_texts_come_in_time(name: str, read: Counter[type]) -> None:
    texts = generated(FLOODS[name])
    for quiet, busy in zip(QUIET, texts, strict=True):
        assert busy.token_ids == quiet.token_ids == EXPECTED
        assert busy.seconds < 2 * quiet.seconds
    # Sent were 64 KiB and more each 10 ms, to each node.
    nodes = 1 if FLOODS[name][0] == VERIFY else 2
    span_s = 2.0 + sum(busy.seconds for busy in texts)
    of_flood = type(FLOODS[name][1])
    assert 100 < read[of_flood] < nodes * (READ_BURST + READ_RATE * span_s) or name == "the largest requests"
    if name == "the largest requests":
        assert 2 < read[of_flood] < 40 * span_s


class FloodingDrafter:
    """A drafter that announces the best speed and answers each request with a flood."""

    def __init__(self, message_of: Callable[[int], Message], *, streams: int = 1) -> None:
        self._message_of = message_of
        self._streams = streams
        self.attacks: list[asyncio.Task[None]] = []

    async def join(self, swarm: SimulatedSwarm) -> None:
        record = (await swarm.directory.find(Role.DRAFTER, TARGET))[0]
        await swarm.join(FLOODER).serve(DRAFT, self._handle)
        await swarm.directory.announce(replace(record, peer_id=FLOODER.peer_id, pass_us=1), [TARGET])

    async def _handle(self, stream: Stream) -> None:
        def receive(channel: Channel, told: Message) -> None:
            if isinstance(told, Start):
                message = self._message_of(told.number)
                self.attacks += [asyncio.ensure_future(flood(stream, message)) for _ in range(self._streams)]

        await serve_channel(stream, DRAFT, receive)


@in_a_swarm
async def test_a_drafter_that_keeps_flooding_its_client_loses_its_link_and_is_not_asked_again(
    swarm: SimulatedSwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosine_p2p.transport.channel.FLOOD_S", SHORT_FLOOD_S)
    await swarm.verifier(target_engine())
    honest = await swarm.drafter(draft_engine(0.9))
    text = "x" * MAX_TEXT_BYTES
    drafter = FloodingDrafter(lambda number: Error(number + 1000, ErrorCode.INTERNAL, text, None), streams=STREAMS)
    await drafter.join(swarm)
    client = await swarm.client(timeout_s=60.0, seed=0)
    now_s = asyncio.get_running_loop().time
    assert (await client.generate(PROMPT, max_new_tokens=TOKENS)).token_ids == EXPECTED
    assert len(drafter.attacks) == STREAMS and not client._memory.failures.avoided(now_s())
    await asyncio.sleep(SHORT_FLOOD_S + 3.0)
    links = (await client._connected()).links
    assert links.alive(FLOODER.peer_id, DRAFT) is None
    assert links.alive(honest.identity.peer_id, DRAFT) is not None
    assert client._memory.failures.avoided(now_s()) == {FLOODER.peer_id}
    for _ in range(2):
        done = await client.generate(PROMPT, max_new_tokens=TOKENS)
        assert done.token_ids == EXPECTED and done.swarm.accepted
    assert len(drafter.attacks) == STREAMS
    await ended(drafter.attacks)
