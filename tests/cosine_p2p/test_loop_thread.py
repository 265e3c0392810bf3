"""A loop in a thread: everything begun there ends before the context does, and nothing is left to complain."""

import asyncio
import gc
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager

import pytest

from cosine_p2p.blocking import LoopThread
from cosine_protocol.errors import UsageError

NAME = "loop-thread-test"


@pytest.fixture
def _python_interrupts() -> Iterator[None]:
    """Python's own handling of SIGINT, which a parent that ignores the signal would have taken away."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Place:
    """A context that notes what happens, and leaves a sleeping task behind as careless libraries do."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.is_begun = threading.Event()

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[None]:
        self.sleeping = asyncio.create_task(asyncio.sleep(3600))
        self.events.append("entered")
        yield
        self.events.append("left")

    async def wait_for_ever(self) -> None:
        self.events.append("begun")
        self.is_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.events.append("cancelled")


def names_of_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_coroutines_run_in_the_context_until_it_is_left() -> None:
    place = Place()
    thread = LoopThread(place(), name=NAME)
    assert NAME in names_of_threads()

    async def name() -> str:
        place.events.append("ran")
        return threading.current_thread().name

    assert thread.wait(thread.submit(name)) == NAME
    thread.close()
    thread.close()
    assert place.events == ["entered", "ran", "left"]
    assert NAME not in names_of_threads()


def test_closing_ends_what_runs_before_the_context_and_says_so() -> None:
    place = Place()
    thread = LoopThread(place(), name=NAME)
    future = thread.submit(place.wait_for_ever)
    place.is_begun.wait()
    thread.close()
    assert place.events == ["entered", "begun", "cancelled", "left"]
    with pytest.raises(UsageError, match="is closed"):
        thread.wait(future)
    with pytest.raises(UsageError, match="is closed"):
        thread.submit(place.wait_for_ever)


def test_nothing_is_said_of_tasks_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    place = Place()
    LoopThread(place(), name=NAME).close()
    assert place.sleeping.cancelled()
    del place
    gc.collect()
    assert not caplog.records


def test_what_fails_raises_where_it_is_waited_for() -> None:
    thread = LoopThread(Place()(), name=NAME)

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        thread.wait(thread.submit(fail))
    future = thread.submit(asyncio.Event().wait)
    future.cancel()
    with pytest.raises(CancelledError):
        thread.wait(future)
    thread.close()


def test_a_context_that_cannot_be_entered_leaves_no_thread() -> None:
    @asynccontextmanager
    async def closed() -> AsyncIterator[None]:
        if not asyncio.all_tasks():
            yield
        raise UsageError("no entry")

    with pytest.raises(UsageError, match="no entry"):
        LoopThread(closed(), name=NAME)
    assert NAME not in names_of_threads()


def test_a_context_that_fails_at_its_end_says_so_to_who_closes() -> None:
    @asynccontextmanager
    async def failing() -> AsyncIterator[None]:
        yield
        raise ValueError("mine")

    thread = LoopThread(failing(), name=NAME)
    with pytest.raises(ValueError, match="mine"):
        thread.close()
    assert NAME not in names_of_threads()


@pytest.mark.usefixtures("_python_interrupts")
def test_ctrl_c_cancels_what_is_waited_for() -> None:
    place = Place()
    thread = LoopThread(place(), name=NAME)

    async def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await place.wait_for_ever()

    with pytest.raises(KeyboardInterrupt):
        thread.wait(thread.submit(interrupt))
    thread.close()
    assert place.events == ["entered", "begun", "cancelled", "left"]


@pytest.mark.usefixtures("_python_interrupts")
def test_ctrl_c_while_entering_gives_up() -> None:
    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
        yield

    with pytest.raises(KeyboardInterrupt):
        LoopThread(slow(), name=NAME)
    assert NAME not in names_of_threads()


def test_waiting_in_the_thread_itself_is_refused() -> None:
    thread = LoopThread(Place()(), name=NAME)

    async def wait_here() -> None:
        thread.refuse_own_thread()

    with pytest.raises(UsageError, match="own thread"):
        thread.wait(thread.submit(wait_here))
    thread.refuse_own_thread()
    thread.close()


def test_a_forked_child_can_neither_use_nor_close_it(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place()
    thread = LoopThread(place(), name=NAME)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 0)
        with pytest.raises(UsageError, match="after the fork"):
            thread.submit(place.wait_for_ever)
        thread.close()
    assert place.events == ["entered"]
    thread.close()
    assert place.events == ["entered", "left"]
