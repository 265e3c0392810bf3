"""A head's chain of stages: the runner of its passes, over one set of links after the other.

Theory of operation
-------------------
A verifier over stages computes nothing itself. Its engine (`engine`) keeps pages, trees and prefixes and sends each
change to the stages; a pass is a frame on the links (`links`), and several may be under way. The chain is recovered
as a whole: when the links are lost, every pass under way raises `ChainLost`, and the step loop calls `find`, which
opens another chain (`finder`). The requests are then fed again from their committed tokens. Numbers of sequences
are not reused, so that messages of the two chains are distinct.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Protocol

from cosine_engine.base import Row, RowResult
from cosine_engine.curve import CostCurve
from cosine_node.chains.checks import ChainChecks
from cosine_node.chains.engine import StagedEngine
from cosine_node.chains.links import StageLinks
from cosine_node.chains.search import NoChain
from cosine_node.passes.feed_pace import ChainPace
from cosine_node.passes.runner import Pass
from cosine_protocol.errors import CosineError


class Finder(Protocol):
    """Opens chains: `cosine_node.chains.finder.ChainFinder`, and the laboratory's for rings."""

    token_s: float
    """The seconds that a token's activations take over a link between two stages."""

    async def open(self, *, first_sequence: int) -> StageLinks:
        """Open a chain, and end the one before. Raises `NoChain`."""

    def doubt(self) -> bool:
        """Leave the chain as its last stage returned a row without tokens; False if there is no other."""

    def curves(self, whole: CostCurve) -> tuple[CostCurve, ...]:
        """The cost of a pass at each stage of the chain in use, of which `whole` is the measured cost."""


class StageChain:
    """Implements `Runner` over the stages of a model, on the event loop.

    `is_none_left` is set once no chain was found.
    """

    def __init__(
        self,
        engine: StagedEngine,
        finder: Finder,
        *,
        curve: CostCurve,
        checks: ChainChecks | None = None,
        most_under_way: int | None = None,
    ) -> None:
        """`engine` is over a chain that `finder` has opened, and `curve` the measured cost of its passes."""
        self.engine = engine
        self._finder = finder
        self._curve = curve
        self._checks = checks
        engine.use(engine.links, None if checks is None else checks.begin(engine.links))
        self.pace = ChainPace(finder.curves(curve), token_s=finder.token_s, most_under_way=most_under_way)
        self.is_none_left = asyncio.Event()

    @property
    def stages(self) -> tuple[str, ...]:
        """The peer ids of the present stages, in the order of their layers."""
        return self.engine.links.stages

    @property
    def why_not_judge(self) -> str | None:
        """The reason why no verdict is possible over these stages; None if one is."""
        return None if self._checks is None else self._checks.why_not_judge

    def forward(self, rows: Sequence[Row]) -> Awaitable[Pass]:
        """Begin a pass at once, whenever it is awaited."""
        began_s = asyncio.get_running_loop().time()
        try:
            self.engine.begin(rows)
        except CosineError as error:
            return _failed(error)
        return self._end(rows, self.engine.links.answer(), began_s)

    async def _end(self, rows: Sequence[Row], answer: Awaitable[Sequence[RowResult]], began_s: float) -> Pass:
        results = self.engine.end(rows, await answer)
        return Pass(results, asyncio.get_running_loop().time() - began_s)

    async def find(self) -> None:
        """Continue over another chain, with no open sequences. Raises `NoChain`."""
        try:
            # Sequences that requests open while the chain is set up are lost, too.
            links = await self._finder.open(first_sequence=self.engine.opened)
        except NoChain:
            self.is_none_left.set()
            raise
        self.engine.go_on(links, None if self._checks is None else self._checks.begin(links))
        self.pace.replace_stages(self._finder.curves(self._curve))

    def doubt(self) -> bool:
        """Leave the chain as its last stage returned a row without tokens; False if there is no other."""
        return self._finder.doubt()

    def abandon(self) -> None:
        """Do nothing: the stages finish what they have received."""

    def close(self) -> None:
        return


async def _failed(error: CosineError) -> Pass:
    raise error
