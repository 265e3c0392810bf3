"""Passes down a chain: several under way, answered in their order, and another chain where one is lost."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence

import pytest

from cosine_lab.simulation.stages import NoStages
from cosine_node.chains.engine import ChainEngine
from cosine_node.chains.runner import ChainRunner, OpenedChain
from cosine_node.chains.search import NoChain
from cosine_node.engine.base import Choice, Row, RowResult
from cosine_node.engine.curve import CostCurve
from cosine_node.engine.kv_pool import PagePool
from cosine_node.stages.operations import ChainLost, FeedRows, Operation
from cosine_protocol.request import Sampling
from tests.node.stages.chains import in_loop

CURVE = CostCurve(((1, 0.01),))
POOL_TOKENS = 64


class AnsweredLater:
    """Implements `AnsweringChain`: a feed is answered, by each token's successor, when `answer_next` says."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._asked: deque[tuple[FeedRows, asyncio.Future[Sequence[RowResult]]]] = deque()

    def submit(self, operation: Operation) -> None:
        self.operations.append(operation)

    def results(self) -> Sequence[RowResult]:
        raise AssertionError("nobody waits for this chain")

    def answer(self) -> Awaitable[Sequence[RowResult]]:
        fed = [operation for operation in self.operations if isinstance(operation, FeedRows)]
        future: asyncio.Future[Sequence[RowResult]] = asyncio.get_running_loop().create_future()
        self._asked.append((fed[-1], future))
        return future

    def answer_next(self) -> None:
        fed, future = self._asked.popleft()
        future.set_result([RowResult(tuple(Choice(token + 1, 1.0) for token in row.tokens)) for row in fed.rows])

    def lose(self) -> None:
        for _, future in self._asked:
            future.set_exception(ChainLost("Layers 0:2 at a: gone."))
        self._asked.clear()


class OneAfterTheOther:
    """Implements `ChainOpener` over chains made before."""

    def __init__(self, *chains: AnsweredLater) -> None:
        self.chains = deque(chains)
        self.first_sequences: list[int] = []

    async def open(self, *, first_sequence: int) -> OpenedChain:
        self.first_sequences.append(first_sequence)
        if not self.chains:
            raise NoChain("Layers 0:2 of 4 are held by nobody.")
        return OpenedChain(self.chains.popleft(), (CURVE,))

    def doubt(self) -> bool:
        return False


def runner_of(*chains: AnsweredLater) -> ChainRunner:
    engine = ChainEngine(
        NoStages(), PagePool(tokens=POOL_TOKENS), vocab_tokens=16, context_tokens=POOL_TOKENS, numerics="float32"
    )
    return ChainRunner(
        engine,
        OneAfterTheOther(*chains),
        new_pool=lambda: PagePool(tokens=POOL_TOKENS),
        opened=OpenedChain(NoStages(), (CURVE,)),
    )


@in_loop
async def test_passes_begin_at_once_and_are_answered_in_their_order() -> None:
    chain = AnsweredLater()
    runner = runner_of(chain)
    await runner.find()
    sequence = runner.engine.open(sampling=Sampling(), prompt_tokens=1)
    first = asyncio.ensure_future(runner.forward([Row.chain(sequence, [3])]))
    below = runner.forward([Row(sequence, (7,), (1,), (0,))])
    assert sum(isinstance(operation, FeedRows) for operation in chain.operations) == 2
    chain.answer_next()
    chain.answer_next()
    assert [(await each).results[0].choices[0].token for each in (first, below)] == [4, 8]


@in_loop
async def test_before_any_chain_and_after_its_loss_passes_are_lost() -> None:
    chain = AnsweredLater()
    runner = runner_of(chain)
    sequence = runner.engine.open(sampling=Sampling(), prompt_tokens=1)
    with pytest.raises(ChainLost, match="No chain of stages was found yet"):
        await runner.forward([Row.chain(sequence, [3])])
    await runner.find()
    sequence = runner.engine.open(sampling=Sampling(), prompt_tokens=1)
    passes = [asyncio.ensure_future(runner.forward([Row(sequence, (3,), (name,), (-1,))])) for name in range(2)]
    await asyncio.sleep(0)
    chain.lose()
    assert [type(ended) for ended in await asyncio.gather(*passes, return_exceptions=True)] == [ChainLost] * 2


@in_loop
async def test_another_chain_begins_empty_and_numbers_of_sequences_go_on() -> None:
    runner = runner_of(AnsweredLater(), AnsweredLater())
    await runner.find()
    before = runner.engine.open(sampling=Sampling(), prompt_tokens=1)
    runner.engine.reserve(before, 40)
    await runner.find()
    assert (runner.engine.open_sequences, runner.engine.free_tokens) == (0, POOL_TOKENS)
    assert runner.engine.open(sampling=Sampling(), prompt_tokens=1) == before + 1
    with pytest.raises(NoChain, match="Layers 0:2 of 4 are held by nobody"):
        await runner.find()


@in_loop
async def test_a_sequence_that_is_opened_while_a_chain_is_set_up_does_not_count_there() -> None:
    """The stages count from the number that they were told, and a head ahead of it would be out of step."""
    runner = runner_of(AnsweredLater())
    source = runner._source
    assert isinstance(source, OneAfterTheOther)
    opened = source.open

    async def slow(*, first_sequence: int) -> OpenedChain:
        runner.engine.open(sampling=Sampling(), prompt_tokens=1)
        return await opened(first_sequence=first_sequence)

    setattr(source, "open", slow)  # noqa: B010  # a request comes meanwhile
    await runner.find()
    assert runner.engine.open(sampling=Sampling(), prompt_tokens=1) == source.first_sequences[0]
