"""Work crosses into the trio thread and back: results, errors, cancellation, the end."""

import asyncio
import threading

import pytest
import trio

from cosine_p2p.transport.light.trio_thread import TrioThread
from tests.scenes import in_real_time


@in_real_time
async def test_cancelling_the_caller_cancels_the_work_and_a_result_that_comes_too_late_is_undone() -> None:
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
    await thread.close()


@in_real_time
async def test_closing_ends_the_thread_and_fails_what_waits() -> None:
    thread = await TrioThread.start("test-trio")
    call = asyncio.ensure_future(thread.call(trio.sleep_forever))
    await asyncio.sleep(0)
    await thread.close()
    for work in (call, thread.call(trio.sleep_forever)):
        with pytest.raises(trio.RunFinishedError):
            await work
    thread.post(print, "never")
    await thread.close()
    assert "test-trio" not in {each.name for each in threading.enumerate()}
