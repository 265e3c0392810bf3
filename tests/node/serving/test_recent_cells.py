"""A cell is looked up once for all who ask within a short time."""

import asyncio
from collections.abc import Sequence

import pytest

from cosine_lab.simulation.virtual_loop import run_virtual
from cosine_node.serving.discover_service import MAX_CELLS, REUSE_S, RecentCells
from cosine_protocol.errors import PeerLost


class Dht:
    """Takes a second for each look-up."""

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.is_down = False

    async def read(self, cell: str) -> Sequence[bytes]:
        self.reads.append(cell)
        await asyncio.sleep(1.0)
        if self.is_down:
            raise PeerLost("dht", "down")
        return [cell.encode()]


def test_those_who_ask_together_share_a_look_up() -> None:
    async def run() -> None:
        dht = Dht()
        cells = RecentCells(dht.read, asyncio.get_running_loop().time)
        answers = await asyncio.gather(*(cells("a") for _ in range(50)), cells("b"))
        assert answers == [[b"a"]] * 50 + [[b"b"]]
        assert dht.reads == ["a", "b"]
        await cells("a")
        assert dht.reads == ["a", "b"]
        await asyncio.sleep(REUSE_S)
        await cells("a")
        assert dht.reads == ["a", "b", "a"]

    run_virtual(run())


def test_one_who_gives_up_takes_nothing_from_the_others() -> None:
    async def run() -> None:
        dht = Dht()
        cells = RecentCells(dht.read, asyncio.get_running_loop().time)
        first, second = asyncio.ensure_future(cells("a")), asyncio.ensure_future(cells("a"))
        await asyncio.sleep(0.5)
        first.cancel()
        assert await second == [b"a"]
        assert dht.reads == ["a"]

    run_virtual(run())


def test_a_failure_is_not_kept() -> None:
    async def run() -> None:
        dht = Dht()
        dht.is_down = True
        cells = RecentCells(dht.read, asyncio.get_running_loop().time)
        with pytest.raises(PeerLost):
            await cells("a")
        dht.is_down = False
        assert await cells("a") == [b"a"]

    run_virtual(run())


def test_what_is_kept_is_bounded() -> None:
    async def run() -> None:
        cells = RecentCells(Dht().read, asyncio.get_running_loop().time)
        await asyncio.gather(*(cells(f"{number}") for number in range(MAX_CELLS + 9)))
        assert len(cells._reads) == MAX_CELLS

    run_virtual(run())
