"""A head finds the stage that lies, whatever the lie, goes on without it, and rejects nobody else."""

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from cosine_node.engine.base import Row
from cosine_node.engine.kv_pool import PagePool
from cosine_node.engine.torch.pass_way import PassWay
from cosine_node.stages.chain_engine import ChainEngine
from cosine_node.stages.chain_source import ChainNeeds, ChainSource
from cosine_node.stages.checks import ChainChecks
from cosine_node.stages.disputes import CLEARLY
from cosine_node.stages.engine import StageModel, load_part
from cosine_node.stages.operations import NoChain
from cosine_node.stages.remote_chain import RemoteChain
from cosine_p2p.directory.directory import MemoryDirectory
from cosine_protocol.records import Role, StageOffer
from cosine_protocol.request import Sampling
from cosine_protocol.stage_messages import LayerRange
from tests.node.engine.staged import ranges
from tests.node.engine.tiny_models import VOCAB
from tests.node.stages.chains import POOL_TOKENS, TARGET, ServedStages, in_loop, served
from tests.node.stages.liars import CandidService, Lie, lying_hosts
from tests.protocol.samples import record_of

PARTS: Final = ranges(1, 3, 4)
PROMPT: Final = tuple(range(3, 23))
TOKENS: Final = 12
GREEDY: Final = Sampling()
TYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load(folder: Path, parts: Sequence[LayerRange], *, holders: int, dtype: torch.dtype) -> list[StageModel]:
    """Each part so many times, by stages whose numbers go up by the parts."""
    return [
        StageModel(load_part(str(folder), part, dtype=dtype), part, slots=POOL_TOKENS, way=PassWay.PACKED)
        for _ in range(holders)
        for part in parts
    ]


@pytest.fixture(scope="module")
def thrice(folder: Path) -> list[StageModel]:
    return load(folder, PARTS, holders=3, dtype=torch.float32)


class Head:
    """A head that checks the stages it writes over."""

    def __init__(self, stages: ServedStages, *, seed: int = 0) -> None:
        self.stages = stages
        self.directory = MemoryDirectory()
        self.now_s = 0.0
        rng = random.Random(seed)
        needs = ChainNeeds(target_digest=TARGET, layers=4, vocab_tokens=VOCAB, pool_tokens=96, least_pool_tokens=32)
        self.source = ChainSource(stages.network.join("head"), self.directory, needs, chance=rng.random)
        self.checks = ChainChecks(
            self.source, self.source.disputes, chance=rng.random, now_s=lambda: self.now_s, draw=rng.randbytes
        )
        self.disputes = self.source.disputes
        self.engine: ChainEngine | None = None
        self.chain: RemoteChain | None = None

    async def announce(self, number: int, **fields: Any) -> None:
        """The lower its number the faster a stage says to be."""
        layers, model = self.stages.models[number].layers, self.stages.models[number]
        offer = StageOffer(
            first_layer=layers.first,
            end_layer=layers.end,
            layers=layers.layers,
            wide_tokens=64,
            wide_pass_us=20_000,
            busy_permille=0,
            pool_tokens=POOL_TOKENS,
        )
        record = record_of(
            peer_id=f"stage {number}",
            role=Role.STAGE,
            target_digest=TARGET,
            stage=offer,
            numerics=model.numerics,
            pass_us=1000 * (1 + number),
            **fields,
        )
        await self.directory.announce(record, (TARGET.hex(),))

    async def open(self) -> None:
        """Go on over the best chain. Raises `NoChain`."""
        first = self.engine.opened if self.engine is not None else 0
        self.chain = await self.source.open(first_sequence=first)
        assert self.source.pool_tokens is not None and self.source.numerics is not None
        self.engine = ChainEngine(
            self.chain,
            PagePool(tokens=self.source.pool_tokens),
            vocab_tokens=VOCAB,
            context_tokens=256,
            numerics=self.source.numerics,
            first_sequence=first,
        )
        self.engine.witness = self.checks.begin(self.chain)

    async def write(
        self, prompt: Sequence[int] = PROMPT, *, tokens: int = TOKENS, sampling: Sampling = GREEDY
    ) -> list[int]:
        """A text, token by token; over another chain first where the one before was given up."""
        if self.chain is None or self.chain.lost.is_set():
            await self.open()
        assert self.engine is not None and self.chain is not None
        sequence = self.engine.open(sampling=sampling, prompt_tokens=len(prompt), scope="all")
        known = self.engine.reuse_prefix(sequence, prompt)
        fed, text = tuple(prompt[known:]), list[int]()
        while len(text) < tokens:
            row = Row.chain(sequence, fed, scored_from=len(fed) - 1)
            self.engine.begin([row])
            [result] = self.engine.end([row], list(await self.chain.answer()))
            self.engine.keep(sequence, row.nodes)
            text.append(result.choices[0].token)
            fed = (text[-1],)
        self.engine.release(sequence)
        return text

    async def checked(self, prompt: Sequence[int] = PROMPT, **options: Any) -> list[int]:
        """A text, and what its check brings."""
        text = await self.write(prompt, **options)
        await self.checks.idle()
        return text

    @property
    def rejected(self) -> set[str]:
        return set(self.disputes.standings.rejected(self.now_s))

    @property
    def used(self) -> list[str]:
        assert self.chain is not None
        return list(self.chain.stages)


@asynccontextmanager
async def head_of(
    models: Sequence[StageModel],
    lies: dict[int, Lie] | None = None,
    *,
    seed: int = 0,
    holders: Sequence[int] | None = None,
) -> AsyncIterator[Head]:
    """A head among stages, all of them or those of these numbers."""
    async with served(models, host_of=lying_hosts(lies or {}), service_of=CandidService) as stages:
        head = Head(stages, seed=seed)
        try:
            for number in holders or range(len(models)):
                await head.announce(number)
            yield head
        finally:
            await head.checks.close()
            await head.source.close()


OF_THE_FIRST: Final = 0
OF_THE_MIDDLE: Final = 1
OF_THE_LAST: Final = 2
CASES: Final = [
    (lie, liar)
    for liar in (OF_THE_FIRST, OF_THE_MIDDLE, OF_THE_LAST)
    for lie in (Lie.NONSENSE, Lie.NOISE, Lie.ONLY_WRITING, Lie.OTHER_CLAIM)
    # The last stage sends nothing but choices.
    if not (liar == OF_THE_LAST and lie in (Lie.NOISE, Lie.OTHER_CLAIM))
]


@pytest.mark.parametrize(("lie", "liar"), CASES, ids=str)
@in_loop
async def test_the_first_lie_is_found_and_nobody_else_suffers(
    thrice: list[StageModel], lie: Lie, liar: int
) -> None:
    async with head_of(thrice) as honest:
        expected = await honest.checked()
    async with head_of(thrice, {liar: lie}) as head:
        await head.checked()
        assert head.rejected == {f"stage {liar}"}
        assert head.chain is not None and head.chain.lost.is_set()
        # The next text is written by others, and right.
        assert await head.checked() == expected
        assert f"stage {liar}" not in head.used
        assert head.rejected == {f"stage {liar}"} and not head.disputes.open


@in_loop
async def test_stages_that_are_honest_are_found_right_and_ever_less_often_checked(thrice: list[StageModel]) -> None:
    async with head_of(thrice) as head:
        for number in range(8):
            await head.checked(tuple(range(3 + number, 20 + number)))
        assert not head.rejected and not head.disputes.open
        checks = [head.disputes.standings.checks(each, now_s=0.0) for each in head.used]
        assert min(checks) >= CLEARLY
        assert head.disputes.check_chance(head.used, now_s=0.0) < 1
        assert head.checks.why_not_judge is None


@pytest.mark.parametrize("lie", [Lie.HIDDEN, Lie.BLAMES])
@in_loop
async def test_who_blames_a_neighbour_is_found_once_it_has_blamed_two(thrice: list[StageModel], lie: Lie) -> None:
    async with head_of(thrice) as honest:
        expected = await honest.checked()
    async with head_of(thrice, {OF_THE_MIDDLE: lie}) as head:
        await head.checked()
        # Of the two one lies, and nobody can tell which: they are not put side by side again.
        [dispute] = head.disputes.open
        assert dispute.is_link and "stage 1" in dispute.members and not head.rejected
        texts = []
        while not head.rejected:
            texts.append(await head.checked())
            assert len(texts) < 40
        assert head.rejected == {"stage 1"} and not head.disputes.open
        assert sum(text != expected for text in texts) <= 1 and await head.checked() == expected


@pytest.mark.parametrize("lie", [Lie.NONSENSE, Lie.OTHER_CLAIM])
@in_loop
async def test_who_lies_about_others_texts_is_found_too(thrice: list[StageModel], lie: Lie) -> None:
    async with head_of(thrice) as honest:
        expected = await honest.checked()
    # Its words say that it is slow: it only computes what others have written.
    async with head_of(thrice, {7: lie}) as head:
        for _ in range(40):
            assert await head.checked() == expected
            if head.rejected:
                break
        assert head.rejected == {"stage 7"} and not head.disputes.open
        assert head.chain is not None and not head.chain.lost.is_set()


@in_loop
async def test_where_two_hold_layers_and_neither_is_known_both_are_set_aside(thrice: list[StageModel]) -> None:
    async with head_of(thrice, {OF_THE_MIDDLE: Lie.NONSENSE}, holders=range(6)) as head:
        await head.checked()
        assert not head.rejected
        sentence = r"^Stages stage 1 and stage 4 disagree about layers 1:3 of 4, and nobody else holds them\.$"
        with pytest.raises(NoChain, match=sentence):
            await head.write()
        # A third one has come.
        await head.announce(7)
        await head.source._look()
        await head.write()
        assert head.used[1] == "stage 7"


@in_loop
async def test_where_two_hold_layers_the_one_that_was_found_right_is_believed(thrice: list[StageModel]) -> None:
    async with head_of(thrice, {OF_THE_MIDDLE: Lie.NONSENSE}, holders=(0, 2, 3, 4, 5, 7, 8)) as head:
        for _ in range(CLEARLY):
            expected = await head.checked()
        assert head.disputes.standings.checks("stage 4", now_s=0.0) >= CLEARLY
        # Who was asked first, since it says to be fast, is asked last now, but to check.
        await head.stages.network.transports["stage 7"].close()
        await head.announce(1)
        await head.source._look()
        texts = [await head.checked() for _ in range(64) if not head.rejected]
        assert head.rejected == {"stage 1"}
        assert all(text == expected for text in texts)


@in_loop
async def test_a_lie_in_a_prefix_that_others_go_on_from_is_its_own(thrice: list[StageModel]) -> None:
    """What a stage got wrong is in the keys and values of those behind it, who are honest."""
    prompt = tuple(range(3, 3 + 40))
    async with head_of(thrice, {OF_THE_FIRST: Lie.NONSENSE}) as head:
        await head.open()
        chance, head.checks._chance = head.checks._chance, lambda: 1.0
        await head.checked(prompt)
        liar = head.stages.hosts[OF_THE_FIRST]
        # It says nothing wrong any more, but what is cached was computed with what it said.
        for chain in head.stages.services[OF_THE_FIRST]._chains.values():
            chain.hosted._lie = None  # type: ignore[attr-defined]  # a `LyingChain`
        assert liar.chains == 1
        head.checks._chance = chance
        await head.checked((*prompt, 9, 8, 7))
        assert head.rejected == {"stage 0"} and not head.disputes.open


@in_loop
async def test_an_auditor_does_not_judge_over_stages_that_were_never_found_right(thrice: list[StageModel]) -> None:
    async with head_of(thrice) as head:
        await head.open()
        assert head.checks.why_not_judge == "not all stages were found right yet"
        await head.checked()
        assert head.checks.why_not_judge is None
    async with head_of(thrice, {OF_THE_MIDDLE: Lie.HIDDEN}) as head:
        await head.checked()
        assert head.checks.why_not_judge == "stages contradict each other"
