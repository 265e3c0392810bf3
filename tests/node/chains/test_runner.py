"""Another chain replaces a lost one: it begins empty, and numbers of sequences go on."""

from collections import deque

import pytest

from cosine_lab.simulation.stages import NoStages
from cosine_node.chains.engine import ChainEngine
from cosine_node.chains.runner import ChainRunner, OpenedChain
from cosine_node.chains.search import NoChain
from cosine_node.engine.curve import CostCurve
from cosine_node.engine.kv_pool import PagePool
from cosine_protocol.request import Sampling
from tests.node.stages.chains import in_loop

CURVE = CostCurve(((1, 0.01),))
POOL_TOKENS = 64


class OneAfterTheOther:
    """Implements `ChainOpener` over chains made before."""

    def __init__(self, *chains: NoStages) -> None:
        self.chains = deque(chains)
        self.first_sequences: list[int] = []

    async def open(self, *, first_sequence: int) -> OpenedChain:
        self.first_sequences.append(first_sequence)
        if not self.chains:
            raise NoChain("Layers 0:2 of 4 are held by nobody.")
        return OpenedChain(self.chains.popleft(), (CURVE,))

    def doubt(self) -> bool:
        return False


def runner_of(*chains: NoStages) -> ChainRunner:
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
async def test_another_chain_begins_empty_and_numbers_of_sequences_go_on() -> None:
    runner = runner_of(NoStages(), NoStages())
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
    runner = runner_of(NoStages())
    source = runner._source
    assert isinstance(source, OneAfterTheOther)
    opened = source.open

    async def slow(*, first_sequence: int) -> OpenedChain:
        runner.engine.open(sampling=Sampling(), prompt_tokens=1)
        return await opened(first_sequence=first_sequence)

    setattr(source, "open", slow)  # noqa: B010  # a request comes meanwhile
    await runner.find()
    assert runner.engine.open(sampling=Sampling(), prompt_tokens=1) == source.first_sequences[0]
