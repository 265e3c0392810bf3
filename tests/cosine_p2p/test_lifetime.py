"""A client is refused in one sentence where it cannot be used."""

import asyncio
import os

import pytest

from cosine_p2p.lifetime import Lifetime
from cosine_protocol.errors import UsageError


async def begun() -> Lifetime:
    lifetime = Lifetime()
    lifetime.begin()
    lifetime.check_running_loop()
    return lifetime


def test_it_begins_once() -> None:
    async def twice() -> None:
        (await begun()).begin()

    with pytest.raises(UsageError, match="joined already"):
        asyncio.run(twice())


def test_it_ends_once() -> None:
    lifetime = asyncio.run(begun())
    lifetime.check()
    lifetime.end()
    with pytest.raises(UsageError, match="is closed; make another one"):
        lifetime.check()


def test_another_event_loop_is_refused() -> None:
    lifetime = asyncio.run(begun())

    async def elsewhere() -> None:
        lifetime.check_running_loop()

    with pytest.raises(UsageError, match="joined on another event loop; make a client on this one"):
        asyncio.run(elsewhere())


def test_a_forked_child_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lifetime = asyncio.run(begun())
    monkeypatch.setattr(os, "getpid", lambda: 0)
    assert not lifetime.is_of_this_process
    with pytest.raises(UsageError, match="make a client after the fork"):
        lifetime.check()
