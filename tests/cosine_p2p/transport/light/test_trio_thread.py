"""Calls into the trio thread: cancellation, late results, and the end of the thread."""

import asyncio

import pytest
import trio

from cosine_p2p.transport.light.trio_thread import TrioThread
from tests.scenes import in_real_time


@in_real_time
async def test_a_cancelled_call_is_cancelled_or_undone_and_an_open_one_fails_when_the_thread_ends() -> None:
    thread = await TrioThread.start("test-trio")
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str] = loop.create_future()
    undone: asyncio.Future[str] = loop.create_future()
    begun = asyncio.Event()

    async def sleeps() -> None:
        thread.post_back(begun.set)
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            thread.post_back(ended.set_result, "cancelled")
            raise

    async def stubborn() -> str:
        with trio.CancelScope(shield=True):
            thread.post_back(begun.set)
            await trio.sleep(0.02)
        return "a stream"

    call = asyncio.ensure_future(thread.call(sleeps))
    await begun.wait()
    call.cancel()
    assert await ended == "cancelled"
    begun.clear()
    late = asyncio.ensure_future(thread.call(stubborn, undo=undone.set_result))
    await begun.wait()
    late.cancel()
    assert await undone == "a stream"
    assert call.cancelled() and late.cancelled()
    waiting = asyncio.ensure_future(thread.call(trio.sleep_forever))
    await asyncio.sleep(0)
    await thread.close()
    for work in (waiting, thread.call(trio.sleep_forever)):
        with pytest.raises(trio.RunFinishedError):
            await work
