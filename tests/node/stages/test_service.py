"""A stage accepts a chain's operations from one peer, in order and within limits, with typed errors."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
import torch

from cosine_engine.base import PREFIX, Row
from cosine_engine.pool_size import USUAL_TOKENS
from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.virtual_loop import call_at_once
from cosine_node.stages.frames import feed_messages
from cosine_node.stages.host import HostedChain, StageModel
from cosine_node.stages.proof import PROBES_A_TOKEN
from cosine_node.stages.served_chain import FRESH_S, IDLE_S, StageInbox
from cosine_node.stages.service import MAX_PEER_CHAINS
from cosine_p2p.transport.channel import Channel
from cosine_protocol.codec import Message
from cosine_protocol.errors import ErrorCode, PeerLost
from cosine_protocol.request import Sampling
from cosine_protocol.stage import (
    STAGE,
    FeedPart,
    Follow,
    Join,
    Joined,
    KeepPath,
    OpenSequence,
    Passed,
    Probe,
    Probed,
    PruneNodes,
    Results,
    RowFault,
)
from cosine_protocol.stream import Error
from tests.engine.staged import load_untried, ranges
from tests.engine.tiny_models import VOCAB
from tests.node.stages.chains import POOL_TOKENS, ServedStages, served
from tests.scenes import as_test, in_real_time, in_virtual_time

_T = TypeVar("_T")
WIDTH: Final = 64
CHAIN: Final = bytes(16)
OPEN: Final = OpenSequence(0, Sampling(), 3, None)


class Gate:
    """Passes that wait until the gate is opened."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()

    async def __call__(self, work: Callable[[], _T], /) -> _T:
        await self.is_open.wait()
        return work()


def join_of(stages: ServedStages, *, number: int = 1, **changes: Any) -> Join:
    """The `Join` of a head for a stage behind the peer "before"."""
    join = stages.plan().join(number, chain=CHAIN, head="head")
    return replace(join, **({"source": "before" if number else "head"} | changes))


@asynccontextmanager
async def stream_of(
    stages: ServedStages, peer_id: str, *said: Message, stage: str = "stage 1"
) -> AsyncIterator[Channel]:
    """A stream of a peer to a stage, with these messages sent."""
    transport = stages.network.transports.get(peer_id) or stages.network.join(peer_id)
    async with Channel(await transport.dial(stage, STAGE), STAGE) as channel:
        for message in said:
            channel.post(message)
        yield channel


async def heard(channel: Channel) -> Message:
    """The next message of a stage other than `Passed`."""
    while isinstance(message := await channel.receive(), Passed):
        pass
    return message


async def error_from(channel: Channel) -> Error:
    error = await heard(channel)
    assert isinstance(error, Error)
    return error


def fed(row: Row, *, number: int = 0, value: float = 0.5) -> Sequence[Message]:
    vectors = torch.full((len(row.tokens), WIDTH), value)
    return feed_messages(number, [row], vectors.numpy().tobytes())


@in_virtual_time
async def play(
    models: Sequence[StageModel],
    scene: Callable[[ServedStages, Channel, Channel], Any],
    *,
    gate: "Gate | None" = None,
    **options: Any,
) -> None:
    """Run a scene with a head that has a chain at the last stage, and the peer before that stage."""
    network = MemoryNetwork(one_way_s=0.001, window_bytes=1 << 16)
    async with served(models, network=network, offload=gate or call_at_once, **options) as stages:
        async with stream_of(stages, "head", join_of(stages)) as head:
            assert await heard(head) == Joined(CHAIN)
            async with stream_of(stages, "before", Follow(CHAIN)) as before:
                assert await before.receive() == Joined(CHAIN)
                try:
                    await scene(stages, head, before)
                finally:
                    if gate is not None:
                        gate.is_open.set()
        await asyncio.sleep(5)
        assert stages.is_idle


in_chain: Final = as_test(lambda scene, halves: play(halves, scene), given=3, shared=("halves",))


@pytest.mark.parametrize(
    ("said", "code", "sentence"),
    [
        (fed(Row.chain(0, (3,)), value=torch.nan), ErrorCode.BAD_ACTIVATIONS, "not finite numbers"),
        (feed_messages(0, [Row.chain(0, (3,))], bytes(7)), ErrorCode.BAD_ACTIVATIONS, "7 bytes of activations"),
        (feed_messages(0, [Row.chain(0, (3,))]), ErrorCode.BAD_ACTIVATIONS, "0 bytes of activations"),
        (fed(Row(0, (3,), (5,), (4,))), ErrorCode.OUT_OF_STEP, "Parent 4 is not alive"),
        (fed(Row.chain(9, (3,))), ErrorCode.OUT_OF_STEP, "Sequence 9 is not open"),
        (fed(Row.chain(0, (VOCAB,))), ErrorCode.OUT_OF_STEP, "outside the vocabulary"),
        (fed(Row.chain(0, (3,) * (POOL_TOKENS + 1))), ErrorCode.OUT_OF_STEP, "longer than the context"),
        ([KeepPath(0, (4,))], ErrorCode.OUT_OF_STEP, "does not follow"),
        ([Results(0, ())], ErrorCode.MALFORMED, "unexpected Results"),
        ([Probe(bytes(16), ())], ErrorCode.MALFORMED, "unexpected Probe"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@in_chain
async def test_what_a_chain_cannot_take_ends_it_with_an_error_that_names_the_layers(
    stages: ServedStages, head: Channel, before: Channel, said: Sequence[Message], code: ErrorCode, sentence: str
) -> None:
    for message in (OPEN, *said):
        before.post(message)
    error = await error_from(head)
    assert (error.number, error.code) == (0, code)
    assert error.message.startswith("layers 2:4: ") and sentence in error.message


@pytest.mark.parametrize("place", ["what comes in", "a pass"])
@in_chain
async def test_a_stage_without_memory_says_so_itself(
    stages: ServedStages, head: Channel, before: Channel, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(*{"what comes in": (StageInbox, "put"), "a pass": (HostedChain, "run")}[place], fail)
    for message in (OPEN, *fed(Row.chain(0, (3,)))):
        before.post(message)
    error = await error_from(head)
    assert error.code == ErrorCode.OUT_OF_MEMORY
    assert error.message == "layers 2:4: no memory is left for a pass"


@in_chain
async def test_a_chain_ends_with_the_stage_before_and_says_so(
    stages: ServedStages, head: Channel, before: Channel
) -> None:
    stages.network.transports["before"].vanish()
    error = await error_from(head)
    assert error.code == ErrorCode.NEIGHBOUR_LOST and "the stage before is gone" in error.message


@in_chain
async def test_a_stranger_feeds_nobodys_chain_and_ends_none(
    stages: ServedStages, head: Channel, before: Channel
) -> None:
    for peer_id, chain in (
        ("stranger", CHAIN),
        ("head", CHAIN),
        ("before", bytes([1]) * 16),
        ("before", CHAIN),
    ):
        async with stream_of(stages, peer_id, Follow(chain), OPEN) as refused:
            error = await error_from(refused)
            assert error.code == ErrorCode.WRONG_PEER
            with pytest.raises(PeerLost):
                await refused.receive()
    before.post(OPEN)
    for message in fed(Row.chain(0, (3, 4))):
        before.post(message)
    answer = await heard(head)
    assert isinstance(answer, Results) and answer.rows[0].fault == RowFault.NONE


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"target_digest": bytes(32)}, ErrorCode.WRONG_TARGET),
        ({"numerics": "bfloat16"}, ErrorCode.UNSUPPORTED),
        ({"first_layer": 1}, ErrorCode.WRONG_LAYERS),
        ({"end_layer": 3}, ErrorCode.WRONG_LAYERS),
        ({"layers": 5}, ErrorCode.WRONG_LAYERS),
        ({"target": "stage 0"}, ErrorCode.MALFORMED),
        ({"window_tokens": 4, "chain": bytes(15) + b"1"}, ErrorCode.UNSUPPORTED),
        ({}, ErrorCode.MALFORMED),
        ({"chain": bytes([1]) * 16}, ErrorCode.OVERLOADED),
    ],
    ids=str,
)
@in_chain
async def test_a_chain_that_is_not_for_this_stage_is_refused(
    stages: ServedStages, head: Channel, before: Channel, changes: dict[str, Any], code: ErrorCode
) -> None:
    async with stream_of(stages, "other", join_of(stages, **changes)) as other:
        error = await error_from(other)
        assert (error.number, error.code) == (0, code)
    assert stages.services[1].requests == 1


def test_a_slow_stage_stops_reading_and_its_memory_stays_bounded(halves: list[StageModel]) -> None:
    inbox_bytes = 1 << 16
    row_tokens, feeds, gate = 40, 40, Gate()

    async def scene(stages: ServedStages, head: Channel, before: Channel) -> None:
        service = stages.services[1]

        async def send_all() -> None:
            # Only the first feed is wanted; it waits for the engine, and the others behind it.
            for message in (OPEN, *fed(Row(0, (3,), (1000,), (PREFIX,)))):
                await before.send(message)
            for number in range(1, feeds):
                row = Row.chain(0, (3,) * row_tokens)
                for message in (*fed(row, number=number), PruneNodes(0, (0,))):
                    await before.send(message)

        sending = asyncio.ensure_future(send_all())
        # Far longer than the silence limit of a peer.
        for _ in range(40):
            await asyncio.sleep(1)
            assert service.waiting_bytes < inbox_bytes + row_tokens * (4 * WIDTH + 200)
        assert before.waiting_bytes
        gate.is_open.set()
        numbers = []
        for _ in range(feeds):
            answer = await heard(head)
            assert isinstance(answer, Results)
            numbers.append(answer.number)
        assert numbers == list(range(feeds))
        await sending

    play(halves, scene, gate=gate, inbox_bytes=inbox_bytes)


@in_virtual_time
async def test_a_chain_with_thousands_of_operations_lets_others_have_their_turns(halves: list[StageModel]) -> None:
    gate = Gate()
    waiting: list[tuple[int, int]] = []

    def note(tokens: int, elapsed_s: float) -> None:
        waiting.append((tokens, stages.services[1].waiting_bytes))

    async with (
        served(halves, network=MemoryNetwork(one_way_s=0.001), offload=gate, note_pass=note) as stages,
        AsyncExitStack() as opened,
    ):
        for number in range(2):
            chain, source = bytes([number]) * 16, f"before {number}"
            join = join_of(stages, chain=chain, source=source, pool_tokens=64)
            head = await opened.enter_async_context(stream_of(stages, f"head {number}", join))
            assert await heard(head) == Joined(chain)
            before = await opened.enter_async_context(stream_of(stages, source, Follow(chain)))
            assert await before.receive() == Joined(chain)
            for message in (OPEN, *fed(Row.chain(0, (3,) * 40))):
                before.post(message)
            for _ in range(0 if number else 19_000):
                before.post(PruneNodes(0, (1000,)))
            if number:
                for message in fed(Row(0, (4,), (99,), (39,)), number=1):
                    before.post(message)
        await asyncio.sleep(1)
        waited = stages.services[1].waiting_bytes
        gate.is_open.set()
        await asyncio.sleep(1)
        # The first feeds of both, then one with nothing behind it.
        assert [tokens for tokens, _ in waiting] == [40, 40, 1]
        assert waiting[-1][1] > 0.9 * waited and not stages.services[1].waiting_bytes


@in_chain
async def test_a_sequence_has_a_bounded_number_of_nodes(
    stages: ServedStages, head: Channel, before: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosine_node.stages.served_chain.MAX_NAMED_NODES", 8)
    for message in (
        OPEN,
        *fed(Row.chain(0, (3,) * 5)),
        *fed(Row(0, (4,) * 4, (5, 6, 7, 8), (0,) * 4), number=1),
    ):
        before.post(message)
    assert isinstance(await heard(head), Results)
    error = await error_from(head)
    assert error.code == ErrorCode.OUT_OF_STEP and "Sequence 0 would have 9 nodes" in error.message


@in_real_time
async def test_one_head_has_a_part_of_the_pool_and_another_finds_room(folder: Path) -> None:
    models = load_untried(folder, ranges(2, 4), slots=6 * USUAL_TOKENS)
    half = 3 * USUAL_TOKENS
    async with served(models, offload=call_at_once) as stages:
        service = stages.services[1]
        assert service.room_tokens == half

        def asked(number: int, *, tokens: int) -> Join:
            return join_of(stages, chain=bytes([number]) * 16, pool_tokens=tokens)

        async def refusal(stream: Channel) -> str:
            error = await error_from(stream)
            assert error.code == ErrorCode.OVERLOADED and error.retry_after_s
            return error.message

        async with stream_of(stages, "head", asked(1, tokens=half - 16)) as first:
            assert await first.receive() == Joined(bytes([1]) * 16)
            assert service.room_tokens == half
            async with stream_of(stages, "head", asked(2, tokens=32)) as more:
                assert f"one head may have {half} token slots, not {half + 16}" in await refusal(more)
            async with stream_of(stages, "another", asked(3, tokens=half)) as second:
                assert await second.receive() == Joined(bytes([3]) * 16)
                assert service.room_tokens == 16
                async with stream_of(stages, "third", asked(4, tokens=32)) as third:
                    assert "are free together" in await refusal(third)
        assert service.passes.counts.opened == 2


def test_passes_of_a_stage_take_a_share_of_the_time(
    halves: list[StageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    paused_s, noted_s = list[float](), list[float]()
    monkeypatch.setattr(time, "sleep", paused_s.append)

    async def scene(stages: ServedStages, head: Channel, before: Channel) -> None:
        for message in (OPEN, *fed(Row.chain(0, (3,) * 40))):
            before.post(message)
        await asyncio.sleep(5)

    play(halves, scene, share=0.25, note_pass=lambda tokens, elapsed_s: noted_s.append(elapsed_s))
    assert paused_s == [pytest.approx(3 * elapsed_s, rel=0.5) for elapsed_s in noted_s] != []


@in_real_time
async def test_a_head_has_few_chains_call_at_once(halves: list[StageModel]) -> None:
    async with served(halves, offload=call_at_once) as stages, AsyncExitStack() as opened:
        for number in range(MAX_PEER_CHAINS):
            join = join_of(stages, chain=bytes([number]) * 16, pool_tokens=16)
            stream = await opened.enter_async_context(stream_of(stages, "head", join))
            assert isinstance(await stream.receive(), Joined)
        async with stream_of(stages, "head", join_of(stages, pool_tokens=16, chain=bytes([9]) * 16)) as more:
            error = await error_from(more)
            assert "too many chains" in error.message


@in_chain
async def test_a_stage_that_leaves_ends_its_chains_and_takes_no_other(
    stages: ServedStages, head: Channel, before: Channel
) -> None:
    service = stages.services[1]
    await service.drain()
    error = await error_from(head)
    assert error.code == ErrorCode.SHUTTING_DOWN
    assert error.message == "layers 2:4: the stage is leaving"
    assert (service.requests, stages.hosts[1].chains) == (0, 0)
    async with stream_of(stages, "late", join_of(stages, chain=bytes([7]) * 16)) as late:
        error = await error_from(late)
        assert error.code == ErrorCode.SHUTTING_DOWN


PROBE: Final = Probe(bytes(16), (FeedPart(0, 0, 1),))


@in_chain
async def test_a_stage_answers_its_head_not_without_end(
    stages: ServedStages, head: Channel, before: Channel
) -> None:
    for message in (OPEN, *fed(Row.chain(0, (3,)))):
        before.post(message)
    assert isinstance(await heard(head), Results)
    for _ in range(PROBES_A_TOKEN):
        head.post(PROBE)
        assert isinstance(await heard(head), Probed)
    head.post(PROBE)
    error = await error_from(head)
    assert error.code == ErrorCode.OVERLOADED and "more tokens are probed than were fed" in error.message


# Other heads may take the room of idle chains, but never that of working ones.

HALF: Final = 3 * USUAL_TOKENS


class Head:
    """A head of a single stage, with a chain that works on request."""

    def __init__(self, stages: ServedStages, opened: AsyncExitStack) -> None:
        self.stages, self.opened, self.fed = stages, opened, 0
        self.channel: Channel

    async def join(self, name: str, number: int, *, tokens: int = HALF) -> Message:
        """Join, and return the stage's answer."""
        join = self.stages.plan().join(0, chain=bytes([number]) * 16, head=name)
        asked = stream_of(self.stages, name, replace(join, pool_tokens=tokens), stage="stage 0")
        self.channel = await self.opened.enter_async_context(asked)
        return await heard(self.channel)

    async def work(self) -> Message:
        """Feed one token, and return the stage's answer."""
        row = Row(0, (3,), (self.fed,), (self.fed - 1,))
        for message in (*(() if self.fed else (OPEN,)), *feed_messages(self.fed, [row])):
            self.channel.post(message)
        self.fed += 1
        return await heard(self.channel)


@in_virtual_time
async def play_heads(
    folder: Path, scene: Callable[[ServedStages, Callable[[], Head]], Any], **addresses: str
) -> None:
    network = MemoryNetwork(one_way_s=0.001)
    network.addresses.update({name.replace("_", " "): maddr for name, maddr in addresses.items()})
    models = load_untried(folder, ranges(4), slots=2 * HALF)
    async with served(models, network=network, offload=call_at_once) as stages:
        async with AsyncExitStack() as opened:
            await scene(stages, lambda: Head(stages, opened))
        await asyncio.sleep(5)
        assert stages.is_idle


def test_heads_that_only_beat_give_their_room_to_one_that_asks(folder: Path) -> None:
    async def scene(stages: ServedStages, new: Callable[[], Head]) -> None:
        idlers, head, again, other = [new(), new()], new(), new(), new()
        for number, idler in enumerate(idlers):
            assert isinstance(await idler.join(f"idler {number}", number), Joined)
        assert stages.services[0].room_tokens == 0
        await asyncio.sleep(FRESH_S)
        assert stages.services[0].room_tokens == HALF
        assert isinstance(await head.join("head", 7), Joined)
        error = await error_from(idlers[0].channel)
        assert error.code == ErrorCode.OVERLOADED
        assert "another head needs the room of this idle chain" in error.message
        assert isinstance(await head.work(), Results)
        # It may join again, but not instead of a working head, and is idle from the start.
        assert isinstance(await again.join("idler 0", 8), Joined)
        await error_from(idlers[1].channel)
        assert isinstance(await other.join("other", 9), Joined)
        await error_from(again.channel)
        assert isinstance(await head.work(), Results)
        # It is idle, too, a while after its last pass.
        await asyncio.sleep(IDLE_S)
        assert stages.services[0].room_tokens == HALF

    play_heads(folder, scene)


def test_heads_of_one_network_do_not_have_all_of_the_pool(folder: Path) -> None:
    async def scene(stages: ServedStages, new: Callable[[], Head]) -> None:
        quarter = HALF // 2
        for number in range(2):
            near = new()
            assert isinstance(await near.join(f"near {number}", number, tokens=quarter * (2 - number)), Joined)
            assert isinstance(await near.work(), Results)
        error = await new().join("near 2", 2, tokens=16)
        assert isinstance(error, Error) and "the heads of one network may have" in error.message
        assert isinstance(await new().join("far", 3, tokens=quarter), Joined)

    near = {f"near_{number}": f"/ip4/45.66.77.{number + 1}/tcp/1" for number in range(3)}
    play_heads(folder, scene, far="/ip4/46.1.2.3/tcp/1", **near)
