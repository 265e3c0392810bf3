"""A head over streams to stages gives the whole model's tokens, and names lost layers."""

import asyncio
import math
import struct
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cosine_engine.base import BadLogits, Choice, Row, RowResult
from cosine_engine.kv_pool import PagePool
from cosine_node.chains import links
from cosine_node.chains.links import StageLinks
from cosine_node.stages.frames import ChainLost, answer_of, results_of, rows_of
from cosine_node.stages.host import StageEngine, StageModel
from cosine_p2p.transport import channel
from cosine_p2p.transport.channel import Channel
from cosine_protocol.errors import LocalProtocolError, MalformedMessage
from cosine_protocol.request import Sampling
from cosine_protocol.stage import (
    MAX_FEED_TOKENS,
    PROBES,
    STAGE,
    FedRow,
    FeedPart,
    FeedPass,
    Join,
    Joined,
    OpenSequence,
    PartTrace,
    Probe,
    Results,
    RowAnswer,
)
from cosine_protocol.stream import SHAPING
from tests.engine.local_chain import LocalLinks
from tests.engine.staged import load_untried, ranges
from tests.engine.tiny_models import VOCAB
from tests.node.stages.chains import POOL_TOKENS, TARGET, head_of, served
from tests.scenes import in_real_time
from tests.waiting import until


@pytest.fixture(scope="module")
def stages(folder: Path) -> list[StageModel]:
    return load_untried(folder, ranges(1, 3, 4), slots=POOL_TOKENS)


async def off_loop(work: Callable[[], Any]) -> Any:
    """Run work in a thread, as a verifier does."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


@pytest.mark.parametrize(("number", "layers"), [(0, "0:1"), (1, "1:3"), (2, "3:4")])
@in_real_time
async def test_a_stage_that_dies_is_named_by_its_layers(stages: list[StageModel], number: int, layers: str) -> None:
    async with served(stages) as swarm:
        async with StageLinks.opened(swarm.network.join("head"), swarm.plan()) as chain:
            engine = head_of(chain)
            sequence = engine.open(sampling=Sampling(), prompt_tokens=3)
            row = Row.chain(sequence, (3, 4, 5))
            await off_loop(lambda: engine.forward([row]))
            engine.keep(sequence, row.nodes)
            await swarm.network.transports[f"stage {number}"].close()
            await chain.lost.wait()
            for _ in range(2):
                with pytest.raises(ChainLost, match=f"^Layers {layers} at stage {number}: the stream ended"):
                    await off_loop(lambda: engine.forward([Row.chain(sequence, (6,))]))
                assert engine.live_tokens == 3
            engine.release(sequence)
        await until(lambda: swarm.is_idle)


PROBE = Probe(bytes(16), (FeedPart(0, 0, 3), FeedPart(1, 0, 1)))


async def no_answer(*_: object) -> None:
    return


@in_real_time
async def test_what_a_stage_sends_is_what_the_next_one_gets(stages: list[StageModel]) -> None:
    async with served(stages) as swarm, StageLinks.opened(swarm.network.join("head"), swarm.plan()) as chain:
        engine = head_of(chain)
        sequence = engine.open(sampling=Sampling(), prompt_tokens=3)
        await off_loop(lambda: engine.forward([Row.chain(sequence, (3, 4, 5))]))
        assert (chain.fed, chain.stages) == (1, ("stage 0", "stage 1", "stage 2"))
        first, second, last = await chain.probe(PROBE)
        assert first and second and last
        assert first[0].left == second[0].entered and second[0].left == last[0].entered
        assert first[0].left and first[0].left != second[0].left
        assert first[0].entered == last[0].left == b""
        # An unknown pass has empty reports.
        assert {first[1], second[1], last[1]} == {PartTrace(b"", b"")}


@in_real_time
async def test_an_older_stage_is_not_asked_and_one_that_does_not_answer_is_left(
    stages: list[StageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tuple(name for name in channel.FEATURES if name != PROBES)
    async with served(stages) as swarm:
        monkeypatch.setattr(channel, "FEATURES", older)
        async with StageLinks.opened(swarm.network.join("head"), swarm.plan()) as chain:
            assert await chain.probe(PROBE) == [None, None, None]
    monkeypatch.undo()
    monkeypatch.setattr(links, "PROBE_S", 0.1)
    async with served(stages) as swarm, StageLinks.opened(swarm.network.join("head"), swarm.plan()) as chain:
        [served_chain] = swarm.services[1]._chains.values()
        monkeypatch.setattr(served_chain, "_answer", no_answer)
        with pytest.raises(ChainLost, match=r"^Layers 1:3 at stage 1: it does not report"):
            await chain.probe(Probe(bytes(16), ()))
        assert chain.suspects == ("stage 1",)


@in_real_time
async def test_no_chain_whose_last_stage_would_ignore_a_part_of_requests(
    stages: list[StageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "FEATURES", tuple(name for name in channel.FEATURES if name != SHAPING))
    async with served(stages) as swarm:
        with pytest.raises(ChainLost, match=r"^Layers 3:4 at stage 2: its version knows no shaping"):
            async with StageLinks.opened(swarm.network.join("head"), swarm.plan()):
                pass
        await until(lambda: swarm.is_idle)


@in_real_time
async def test_no_chain_over_stages_that_refuse_or_are_not_there(stages: list[StageModel]) -> None:
    async with served(stages) as swarm:
        head = swarm.network.join("head")
        with pytest.raises(LocalProtocolError, match="do not hold all layers"):
            swarm.plan(skip=1)
        with pytest.raises(ChainLost, match=r"^Layers 3:4 at stage 2: layers 3:4: layers of another target"):
            async with StageLinks.opened(head, replace(swarm.plan(), target_digest=bytes(32))):
                pass
        async with StageLinks.opened(head, swarm.plan()):
            with pytest.raises(ChainLost, match=r"Layers 3:4 at stage 2: .*may have 160 token slots, not 320"):
                async with StageLinks.opened(head, swarm.plan()):
                    pass
        await until(lambda: swarm.is_idle)
        await swarm.network.transports["stage 1"].close()
        with pytest.raises(ChainLost, match=r"Layers 1:3 at stage 1: .*no such peer"):
            async with StageLinks.opened(head, swarm.plan()):
                pass
        await until(lambda: swarm.is_idle)


WHOLE: Any = SimpleNamespace(layers=ranges(4)[0])
"""The attributes of a model that a plan needs."""


async def joined(channel: Channel) -> bytes:
    """Answer the `Join` of a chain; return its id."""
    join = await channel.receive()
    assert isinstance(join, Join)
    channel.post(Joined(join.chain))
    return join.chain


@in_real_time
async def test_stages_can_neither_guess_nor_link_the_client_of_a_request() -> None:
    """Scopes share prefixes within a chain only, and a stage has no key to guess them."""
    chains: list[tuple[bytes, list[str]]] = []
    has_opened = asyncio.Event()

    async def note(stream: Any) -> None:
        async with Channel(stream, STAGE) as channel:
            chains.append((await joined(channel), []))
            for _ in range(3):
                opened = await channel.receive()
                assert isinstance(opened, OpenSequence) and opened.scope is not None
                chains[-1][1].append(opened.scope)
            has_opened.set()
            await channel.receive()

    async with served([]) as swarm:
        await swarm.network.join("stage 0").serve(STAGE, note)
        head = swarm.network.join("head")
        swarm.models = [WHOLE]
        for _ in range(2):
            has_opened.clear()
            async with StageLinks.opened(head, swarm.plan()) as chain:
                engine = head_of(chain)
                for scope in ("client a", "client b", "client a"):
                    engine.open(sampling=Sampling(), prompt_tokens=1, scope=scope)
                await has_opened.wait()
        (first, scopes), (second, others) = chains
        assert scopes[0] == scopes[2] != scopes[1] and others[0] == others[2] != others[1]
        assert not set(scopes) & set(others)
        known = (first, second, bytes(16), b"head", TARGET)
        guesses = {
            blake2b(name.encode(), digest_size=16, key=key).hexdigest()
            for key in known
            for name in ("client a", "client b")
        }
        assert not guesses & {*scopes, *others}
        await swarm.network.transports["stage 0"].close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Results(5, ()), "an answer to pass 5, not 0"),
        (Results(0, ()), "0 results for 1 rows"),
        (Joined(bytes(16)), "unexpected Joined"),
        (None, "No stage has answered a pass for 0.2 s"),
    ],
    ids=str,
)
@in_real_time
async def test_a_last_stage_that_answers_nonsense_or_nothing_loses_the_chain(answer: Any, said: str) -> None:
    async def lie(stream: Any) -> None:
        async with Channel(stream, STAGE) as channel:
            await joined(channel)
            while True:
                if isinstance(await channel.receive(), FeedPass) and answer is not None:
                    channel.post(answer)

    async with served([]) as swarm:
        await swarm.network.join("stage 0").serve(STAGE, lie)
        head = swarm.network.join("head")
        swarm.models = [WHOLE]
        async with StageLinks.opened(head, swarm.plan(), answer_s=lambda tokens: 0.2) as chain:
            engine = head_of(chain)

            def ask() -> None:
                engine.forward([Row.chain(engine.open(sampling=Sampling(), prompt_tokens=1), (3,))])

            with pytest.raises(ChainLost, match=said):
                await off_loop(ask)
            assert engine.live_tokens == 0
        await swarm.network.transports["stage 0"].close()


FITTING = RowAnswer(0, (5,), struct.pack("<d", 0.5), (), None)
SCORED = Row.chain(1, [2, 3], scored_from=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": ()},
        {"tokens": (5, 6), "margins": bytes(16)},
        {"tokens": (VOCAB,)},
        {"margins": b""},
        {"margins": bytes(9)},
        {"margins": struct.pack("<d", math.nan)},
        {"candidates": ((), ())},
        {"candidates": (answer_of(RowResult((Choice(1, 0.0, ((1, 1.0),)),))).candidates[0],)},
    ],
    ids=str,
)
def test_answers_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
    assert results_of(Results(0, (FITTING,)), [SCORED], vocab_tokens=VOCAB)
    with pytest.raises(MalformedMessage):
        results_of(Results(0, (replace(FITTING, **changes),)), [SCORED], vocab_tokens=VOCAB)
    with pytest.raises(MalformedMessage, match="0 results for 1 rows"):
        results_of(Results(0, ()), [SCORED], vocab_tokens=VOCAB)


@pytest.mark.parametrize(
    "row",
    [
        FedRow(1, (2,), (), (), 0, 0, wants_nll=False),
        FedRow(1, (), (), (), 0, 0, wants_nll=False),
        FedRow(1, (2,) * 200, tuple(range(200)), (-1,) * 200, 0, 256, wants_nll=False),
    ],
    ids=["no nodes", "empty", "too many candidates"],
)
def test_rows_that_are_none_are_refused(row: FedRow) -> None:
    with pytest.raises(MalformedMessage):
        rows_of(FeedPass(0, (row,), 0))


def test_rows_have_a_bound_together() -> None:
    half = FedRow(1, (2,) * 2049, tuple(range(2049)), (-1, *range(2048)), 2048, 0, wants_nll=False)
    assert len(half.tokens) < MAX_FEED_TOKENS
    rows_of(FeedPass(0, (half,), 0))
    with pytest.raises(MalformedMessage, match="over its bounds"):
        rows_of(FeedPass(0, (half, replace(half, sequence=2)), 0))


def test_a_row_without_finite_logits_fails_alone_and_is_taken_back_everywhere(folder: Path) -> None:
    models = load_untried(folder, ranges(1, 3, 4), slots=POOL_TOKENS)
    stages = [StageEngine(model, PagePool(tokens=POOL_TOKENS), first_sequence=7) for model in models]
    head = head_of(LocalLinks(stages))
    good, bad = (head.open(sampling=Sampling(), prompt_tokens=3) for _ in range(2))
    head.forward([Row.chain(good, (3, 4)), Row.chain(bad, (5, 6))])
    weight = stages[-1].model.packed.model.lm_head.weight.data
    before = weight.clone()
    weight.fill_(torch.nan)
    [result] = head.forward([Row(bad, (7,), (2,), (1,))])
    assert isinstance(result.error, BadLogits)
    weight.copy_(before)
    head.forward([Row(good, (7,), (2,), (1,))])
    assert [stage.live_tokens for stage in stages] == [head.live_tokens] * 3 == [5] * 3
