"""A stage's inbox: complete operations in order, bounded in bytes, in fair turns."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_engine.base import Row
from cosine_node.stages.frames import BadActivations, feed_messages
from cosine_node.stages.passes import WINDOW_S, BusyShare
from cosine_node.stages.served_chain import TURN_STEPS, QueuedFeed, StageInbox, Turn
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.stage import (
    MAX_PART_BYTES,
    Activations,
    BookOperation,
    FeedPass,
    KeepPath,
    PruneNodes,
    ReleaseSequence,
    ReserveRoom,
    ReusePrefix,
)
from tests.scenes import in_real_time, in_virtual_time

TOKEN_BYTES = 1 << 18
MOST_BYTES = 4 * TOKEN_BYTES


def feed_of(tokens: int) -> list[FeedPass | Activations]:
    return feed_messages(0, [Row.chain(1, range(tokens))], bytes(TOKEN_BYTES * tokens))


def filled(messages: Sequence[FeedPass | Activations], *, token_bytes: int = TOKEN_BYTES) -> StageInbox:
    inbox = StageInbox(token_bytes=token_bytes, most_bytes=MOST_BYTES)
    for message in messages:
        inbox.put(message)
    return inbox


@in_real_time
async def test_a_feed_is_taken_once_all_its_activations_are_there() -> None:
    *most, last = feed_of(3)
    inbox = filled(most)
    taking = asyncio.ensure_future(inbox.take())
    await asyncio.sleep(0)
    assert not taking.done() and inbox.bytes > 2 * TOKEN_BYTES
    inbox.put(last)
    inbox.put(ReleaseSequence(1))
    found = await taking
    assert isinstance(found, QueuedFeed) and found.activations == bytearray(3 * TOKEN_BYTES)
    assert await inbox.take() == ReleaseSequence(1)
    assert inbox.bytes == 0


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


@pytest.mark.parametrize(
    "operation", [PruneNodes(1, ()), KeepPath(1, ()), ReserveRoom(1, 0), ReusePrefix(1, (3,))], ids=repr
)
def test_operations_that_change_nothing_are_refused(operation: BookOperation) -> None:
    with pytest.raises(MalformedMessage, match="that changes nothing"):
        StageInbox(token_bytes=0, most_bytes=MOST_BYTES).put(operation)


@given(st.lists(st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 10.0)), max_size=30))
def test_the_share_is_one_of_the_time_that_has_passed(steps: list[tuple[float, float]]) -> None:
    now_s = 5.0
    busy = BusyShare(now_s=now_s)
    assert busy.share(now_s) == 0.0
    work = []
    for pause_s, pass_s in steps:
        began_s = now_s + pause_s
        now_s = began_s + pass_s
        busy.note(began_s=began_s, ended_s=now_s)
        work.append((began_s, now_s))
    first_s = max(5.0, now_s - WINDOW_S)
    spent_s = sum(max(0.0, ended_s - max(began_s, first_s)) for began_s, ended_s in work)
    assert busy.share(now_s) == pytest.approx(spent_s / (now_s - first_s) if now_s > first_s else 0.0, abs=1e-9)
    assert busy.total_s == pytest.approx(sum(ended_s - began_s for began_s, ended_s in work))
    assert busy.share(now_s + WINDOW_S + 1.0) == 0.0


STEPS = st.lists(st.integers(1, 5 * TURN_STEPS), min_size=1, max_size=30)


@given(st.lists(STEPS, min_size=2, max_size=4))
@in_virtual_time
async def test_nobody_gets_more_than_a_turn_and_an_operation_ahead_of_another_that_has_work(
    works: list[list[int]],
) -> None:
    done = [0] * len(works)

    async def work(number: int, operations: list[int]) -> None:
        turn = Turn()
        for steps in operations:
            done[number] += steps
            busy = [each for each, all_steps in zip(done, works, strict=True) if each < sum(all_steps)]
            assert done[number] - min(busy, default=done[number]) <= 2 * (TURN_STEPS + max(map(max, works)))
            await turn.spend(steps)

    await asyncio.gather(*(work(*each) for each in enumerate(works)))
