"""The runner of a head: several passes under way over one chain of stages, which is replaced when it is lost."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cosine_engine.base import Row, RowResult
from cosine_engine.constraints.grammars import Grammars
from cosine_engine.curve import CostCurve
from cosine_engine.kv_pool import PagePool
from cosine_node.chains.engine import ChainEngine
from cosine_node.chains.witness import Witness
from cosine_node.passes.feed_pace import ChainPace
from cosine_node.passes.runner import Pass, count_tokens
from cosine_node.stages.operations import Chain
from cosine_protocol.errors import CosineError


class AnsweringChain(Chain, Protocol):
    """A chain with asynchronous answers: `cosine_node.chains.remote_chain.RemoteChain`."""

    def answer(self) -> Awaitable[Sequence[RowResult]]:
        """Return the results of the oldest unread feed. Raises `ChainLost`."""


@dataclass(frozen=True, slots=True)
class OpenedChain:
    """An open chain, the cost of a pass at each of its stages, their peer ids, and the engine of a warm one."""

    chain: AnsweringChain
    curves: tuple[CostCurve, ...]
    applies_constraints: bool = False
    stages: tuple[str, ...] = ()
    witness: Witness | None = None
    engine: ChainEngine | None = None
    token_s: Callable[[], float] = lambda: 0.0
    """The seconds that a token's activations take over the slowest known link between two stages."""
    why_not_judge: Callable[[], str | None] = lambda: None
    """The reason why no verdict is possible over it; None if one is."""


class ChainOpener(Protocol):
    """Opens chains: `cosine_node.serving.head.HeadChains`."""

    async def open(self, *, first_sequence: int) -> OpenedChain:
        """Open a chain, and end the one before. Raises `NoChain`."""

    def doubt(self) -> bool:
        """Leave the chain because its last stage returned a row without tokens; False if there is no other."""


class ChainRunner:
    """The `Runner` of a head's engine, over one chain of stages after the other, on the event loop.

    `note_pass` is called with the tokens and seconds of each pass; `stages` are the peer ids of the present stages.
    """

    def __init__(
        self,
        engine: ChainEngine,
        source: ChainOpener,
        *,
        new_pool: Callable[[], PagePool],
        opened: OpenedChain,
        most_under_way: int | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        """`new_pool` makes a chain's empty pool; `grammars` apply while the chain supports constraints."""
        self.engine = engine
        self._source = source
        self._new_pool = new_pool
        self._grammars = grammars
        self._use(opened)
        engine.witness = opened.witness
        self.note_pass: Callable[[int, float], object] = lambda tokens, seconds: None
        self.pace = ChainPace(opened.curves, token_s=opened.token_s, most_under_way=most_under_way)
        self.tokens_under_way = 0
        """The tokens of all passes that have not ended."""

    def _use(self, opened: OpenedChain) -> None:
        self._chain = opened.chain
        self.stages = opened.stages
        self._why_not_judge = opened.why_not_judge
        self.engine.grammars = self._grammars if opened.applies_constraints else None

    @property
    def why_not_judge(self) -> str | None:
        """The reason why no verdict is possible over these stages; None if one is."""
        return self._why_not_judge()

    def forward(self, rows: Sequence[Row]) -> Awaitable[Pass]:
        """Begin a pass at once, whenever it is awaited."""
        began_s = asyncio.get_running_loop().time()
        try:
            self.engine.begin(rows)
        except CosineError as error:
            return _failed(error)
        self.tokens_under_way += count_tokens(rows)
        return self._end(rows, self._chain.answer(), began_s)

    async def _end(self, rows: Sequence[Row], answer: Awaitable[Sequence[RowResult]], began_s: float) -> Pass:
        try:
            results = self.engine.end(rows, await answer)
        finally:
            self.tokens_under_way -= count_tokens(rows)
        elapsed_s = asyncio.get_running_loop().time() - began_s
        self.note_pass(count_tokens(rows), elapsed_s)
        return Pass(results, elapsed_s)

    async def find(self) -> None:
        """Continue over another chain, with no open sequences. Raises `NoChain`."""
        # Sequences that requests open while the chain is set up are lost, too.
        first_sequence = self.engine.opened
        opened = await self._source.open(first_sequence=first_sequence)
        if opened.engine is not None:
            self.engine.take_over(opened.engine)
        else:
            self.engine.replace_chain(
                opened.chain, self._new_pool(), first_sequence=first_sequence, witness=opened.witness
            )
        self._use(opened)
        self.pace.replace_stages(opened.curves, token_s=opened.token_s)

    def doubt(self) -> bool:
        """Leave the chain because its last stage returned a row without tokens; False if there is no other."""
        return self._source.doubt()

    def abandon(self) -> None:
        """Do nothing: the stages finish what they have received."""

    def close(self) -> None:
        return


async def _failed(error: CosineError) -> Pass:
    raise error
