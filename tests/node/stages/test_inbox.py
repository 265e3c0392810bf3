"""A stage's inbox: operations whole and in order, bounded in bytes, wrong lengths refused before they are taken."""

import asyncio
from collections.abc import Sequence

import pytest

from cosine_node.engine.base import Row
from cosine_node.stages.inbox import QueuedFeed, StageInbox
from cosine_node.stages.operations import BadActivations
from cosine_node.stages.remote_chain import feed_messages
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.limits import MAX_PART_BYTES
from cosine_protocol.stage_messages import Activations, FeedPass, PruneNodes, ReleaseSequence

TOKEN_BYTES = 1 << 18
MOST_BYTES = 4 * TOKEN_BYTES


def feed_of(tokens: int, *, number: int = 0) -> list[FeedPass | Activations]:
    return feed_messages(number, [Row.chain(1, range(tokens))], bytes(TOKEN_BYTES * tokens))


def filled(messages: Sequence[FeedPass | Activations], *, token_bytes: int = TOKEN_BYTES) -> StageInbox:
    inbox = StageInbox(token_bytes=token_bytes, most_bytes=MOST_BYTES)
    for message in messages:
        inbox.put(message)
    return inbox


def test_a_feed_is_taken_once_all_its_activations_are_there() -> None:
    async def run() -> None:
        *most, last = feed_of(3)
        inbox = filled(most)
        taking = asyncio.ensure_future(inbox.take())
        await asyncio.sleep(0)
        assert not taking.done() and inbox.bytes > 2 * TOKEN_BYTES
        inbox.put(last)
        inbox.put(ReleaseSequence(1))
        found = await taking
        assert isinstance(found, QueuedFeed) and found.activations == bytearray(3 * TOKEN_BYTES)
        assert inbox.later() == [ReleaseSequence(1)]
        assert await inbox.take() == ReleaseSequence(1)
        assert inbox.bytes == 0

    asyncio.run(run())


def test_there_is_room_again_when_enough_is_taken_and_always_for_the_only_feed() -> None:
    async def run() -> None:
        inbox = filled(feed_of(6)[:-1])
        assert inbox.bytes > MOST_BYTES and inbox.has_room
        inbox.put(feed_of(6)[-1])
        waiting = asyncio.ensure_future(inbox.room())
        await asyncio.sleep(0)
        assert not inbox.has_room and not waiting.done()
        await inbox.take()
        await waiting
        numbers = 0
        while inbox.has_room:
            inbox.put(PruneNodes(1, tuple(range(1000))))
            numbers += 1
        assert 10 < numbers < 40

    asyncio.run(run())


def test_a_feed_that_the_stage_before_left_out_has_no_activations() -> None:
    [left_out] = feed_messages(0, [Row.chain(1, [2])])
    inbox = filled([left_out])
    assert [feed.activations for feed in inbox.later() if isinstance(feed, QueuedFeed)] == [None]


def test_wrong_lengths_are_refused() -> None:
    [feed, *parts] = feed_of(2)
    assert isinstance(feed, FeedPass)
    with pytest.raises(BadActivations, match=f"{2 * TOKEN_BYTES} bytes of activations, not 0"):
        filled([feed], token_bytes=0)
    with pytest.raises(BadActivations, match=f"not {2 * TOKEN_BYTES + 2}"):
        filled([feed], token_bytes=TOKEN_BYTES + 1)
    inbox = filled([feed, *parts[:-1], Activations(bytes(MAX_PART_BYTES - 1))])
    with pytest.raises(BadActivations, match="1 bytes more than announced"):
        inbox.put(Activations(b"12"))


def test_activations_come_after_their_feed_and_nothing_between_them() -> None:
    [feed, *parts] = feed_of(2)
    with pytest.raises(MalformedMessage, match="no feed announced"):
        filled(parts)
    with pytest.raises(MalformedMessage, match="no feed announced"):
        filled([feed, *parts, *parts])
    with pytest.raises(MalformedMessage, match="no feed announced"):
        filled([feed, Activations(b"")])
    with pytest.raises(MalformedMessage, match="cut off"):
        filled([feed, *parts[:1], feed])
