"""A swarm is polled only while there are watchers, and each watcher gets every change once."""

import asyncio
from typing import Any

from cosine_gateway.page.routes import SwarmWatch
from tests.scenes import in_virtual_time


class Looks:
    """A swarm of one node whose load is the number of polls so far."""

    def __init__(self) -> None:
        self.looks = self.rests = 0

    async def look(self) -> dict[str, Any]:
        self.looks += 1
        if self.looks == 3:
            raise OSError("the network is gone for a moment")
        return {"target": "t", "nodes": [{"peer_id": "a", "load": self.looks}]}

    async def rest(self) -> None:
        self.rests += 1


@in_virtual_time
async def test_all_of_it_comes_first_and_then_what_changed() -> None:
    looks = Looks()
    events = SwarmWatch(looks.look, rest=looks.rest, every_s=1.0).watch()
    assert await anext(events) == ("swarm", {"target": "t", "nodes": [{"peer_id": "a", "load": 1}]})
    assert await anext(events) == ("change", {"nodes": [{"peer_id": "a", "load": 2}]})
    # The third poll failed, and the next one followed.
    assert await anext(events) == ("change", {"nodes": [{"peer_id": "a", "load": 4}]})
    await events.aclose()


@in_virtual_time
async def test_nobody_is_asked_anything_once_nobody_watches() -> None:
    looks = Looks()
    watch = SwarmWatch(looks.look, rest=looks.rest, every_s=1.0)
    one, other = watch.watch(), watch.watch()
    await anext(one)
    await anext(other)
    await one.aclose()
    assert looks.rests == 0
    await other.aclose()
    seen = looks.looks
    await asyncio.sleep(10.0)
    assert (looks.looks, looks.rests) == (seen, 1)


@in_virtual_time
async def test_a_slow_reader_is_told_the_sum_of_what_changed() -> None:
    looks = Looks()
    events = SwarmWatch(looks.look, rest=looks.rest, every_s=1.0).watch()
    await anext(events)
    await asyncio.sleep(6.5)
    assert await anext(events) == ("change", {"nodes": [{"peer_id": "a", "load": looks.looks}]})
    await events.aclose()
