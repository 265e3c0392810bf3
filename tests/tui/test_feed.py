"""Snapshots on their way to the screen: floods coalesce, and a source's thread ends on request."""

import asyncio
import threading
from collections.abc import Callable

from cosine_protocol.errors import UsageError
from cosine_tui.state.feed import ThreadFeed
from cosine_tui.state.prompt_line import Options
from cosine_tui.state.snapshot import Snapshot


class ScriptedSource:
    def __init__(self, *, error: Exception | None = None) -> None:
        self.asked: list[str] = []
        self.cancelled: list[int] = []
        self.flooded = threading.Event()
        self.heard = threading.Event()
        self.was_cancelled = False
        self._error = error

    async def run(self, publish: Callable[[Snapshot], None]) -> None:
        for number in range(1000):
            publish(Snapshot(title=str(number)))
        self.flooded.set()
        if self._error is not None:
            raise self._error
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise

    def ask(self, prompt: str, options: Options) -> None:
        self.asked.append(prompt)
        self.heard.set()

    def cancel(self, number: int) -> None:
        self.cancelled.append(number)
        self.heard.set()


def test_a_source_lives_in_its_thread_until_it_is_closed() -> None:
    source = ScriptedSource()
    feed = ThreadFeed(source)
    feed.start()
    source.flooded.wait()
    assert feed.take() == Snapshot(title="999") and feed.take() is None
    feed.ask("Hello", Options())
    source.heard.wait()
    source.heard.clear()
    feed.cancel(3)
    source.heard.wait()
    feed.close()
    assert (source.asked, source.cancelled, source.was_cancelled) == (["Hello"], [3], True)
    assert not any(thread.name == "cosine-tui-source" for thread in threading.enumerate())
    feed.close()
    feed.ask("too late", Options())
    assert feed.error() is None


def test_what_ends_a_source_is_told() -> None:
    source = ScriptedSource(error=UsageError("That is no address."))
    feed = ThreadFeed(source)
    feed.start()
    source.flooded.wait()
    feed.close()
    assert str(feed.error()) == "That is no address."
