"""Other heads may take the room of idle chains, but never that of working ones."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_engine.base import Row
from cosine_engine.pool_size import USUAL_TOKENS
from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_node.stages.frames import feed_messages
from cosine_node.stages.host import StageModel
from cosine_node.stages.served_chain import FRESH_S
from cosine_p2p.transport.channel import Channel
from cosine_protocol.codec import Message
from cosine_protocol.errors import ErrorCode
from cosine_protocol.request import Sampling
from cosine_protocol.stage import STAGE, Joined, OpenSequence, Passed, Results
from cosine_protocol.stream import Error
from tests.engine.staged import load_untried, ranges
from tests.node.stages.chains import ServedStages, at_once, served
from tests.scenes import in_virtual_time


def chain_of(number: int) -> bytes:
    return bytes([number]) * 16


class Head:
    """A head of a single stage, with a chain that works on request."""

    def __init__(self, stages: ServedStages, name: str, number: int, tokens: int) -> None:
        self.stages, self.name, self.number, self.tokens = stages, name, number, tokens
        self.fed = 0
        self.channel: Channel

    async def join(self, opened: AsyncExitStack) -> Message:
        """Join, and return the stage's answer."""
        network = self.stages.network
        transport = network.transports.get(self.name) or network.join(self.name)
        self.channel = Channel(await transport.dial("stage 0", STAGE), STAGE)
        await opened.enter_async_context(self.channel)
        plan = self.stages.plan()
        join = plan.join(0, chain=chain_of(self.number), head=self.name)
        self.channel.post(replace(join, pool_tokens=self.tokens))
        return await self.channel.receive()

    async def work(self) -> Message:
        """Feed one token, and return the stage's answer."""
        if not self.fed:
            self.channel.post(OpenSequence(0, Sampling(), 1, None))
        for message in feed_messages(self.fed, [Row(0, (3,), (self.fed,), (self.fed - 1,))]):
            self.channel.post(message)
        self.fed += 1
        return await self.said()

    async def said(self) -> Message:
        while isinstance(message := await self.channel.receive(), Passed):
            pass
        return message


@in_virtual_time
async def play(model: StageModel, scene: Callable[[ServedStages, AsyncExitStack], Any], **addresses: str) -> None:
    network = MemoryNetwork(one_way_s=0.001)
    network.addresses.update({name.replace("_", " "): maddr for name, maddr in addresses.items()})
    async with served([model], network=network, offload=at_once) as stages:
        async with AsyncExitStack() as opened:
            await scene(stages, opened)
        await asyncio.sleep(5)
        assert stages.is_idle


HALF: Final = 3 * USUAL_TOKENS


@pytest.fixture(scope="module")
def whole(folder: Path) -> StageModel:
    return load_untried(folder, ranges(4), slots=2 * HALF)[0]


def test_heads_that_only_beat_give_their_room_to_one_that_asks(whole: StageModel) -> None:
    async def scene(stages: ServedStages, opened: AsyncExitStack) -> None:
        idlers = [Head(stages, f"idler {number}", number, HALF) for number in range(2)]
        for idler in idlers:
            assert isinstance(await idler.join(opened), Joined)
        assert stages.services[0].room_tokens == 0
        await asyncio.sleep(FRESH_S)
        assert stages.services[0].room_tokens == HALF
        head = Head(stages, "head", 7, HALF)
        assert isinstance(await head.join(opened), Joined)
        error = await idlers[0].said()
        assert isinstance(error, Error) and error.code == ErrorCode.OVERLOADED
        assert "another head needs the room of this idle chain" in error.message
        assert isinstance(await head.work(), Results)
        # It may join again, but not instead of a working head, and is idle from the start.
        again = Head(stages, "idler 0", 8, HALF)
        assert isinstance(await again.join(opened), Joined)
        assert isinstance(await idlers[1].said(), Error)
        other = Head(stages, "other", 9, HALF)
        assert isinstance(await other.join(opened), Joined)
        assert isinstance(await again.said(), Error)
        assert isinstance(await head.work(), Results)

    play(whole, scene)


def test_heads_of_one_network_do_not_have_all_of_the_pool(whole: StageModel) -> None:
    async def scene(stages: ServedStages, opened: AsyncExitStack) -> None:
        quarter = HALF // 2
        for number in range(2):
            near = Head(stages, f"near {number}", number, HALF if not number else quarter)
            assert isinstance(await near.join(opened), Joined)
            assert isinstance(await near.work(), Results)
        refused = Head(stages, "near 2", 2, 16)
        error = await refused.join(opened)
        assert isinstance(error, Error) and "the heads of one network may have" in error.message
        far = Head(stages, "far", 3, quarter)
        assert isinstance(await far.join(opened), Joined)

    near = {f"near_{number}": f"/ip4/45.66.77.{number + 1}/tcp/1" for number in range(3)}
    play(whole, scene, far="/ip4/46.1.2.3/tcp/1", **near)
