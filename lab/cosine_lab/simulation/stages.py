"""Parts of a target in virtual time: the real services and chains, over layers without computation."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeVar

from cosine_engine.base import Engine, Row, RowResult
from cosine_engine.curve import CostCurve
from cosine_engine.kv_pool import PagePool
from cosine_engine.paged import PagedEngine
from cosine_lab.emulation.machine import MachineUse
from cosine_lab.emulation.memory_transport import MemoryTransport
from cosine_node.chains.chain import StageChain
from cosine_node.chains.engine import StagedEngine
from cosine_node.chains.links import ChainPlan, StageLinks
from cosine_node.chains.search import NoChain, StagePlace
from cosine_node.passes.runner import count_tokens
from cosine_node.stages.frames import ChainLost
from cosine_node.stages.passes import StagePasses
from cosine_node.stages.served_chain import ChainBooks
from cosine_node.stages.service import StageService
from cosine_protocol.stage import LayerRange

_T = TypeVar("_T")
LAYERS: Final = 64
"""Enough for the maximum number of parts of a scenario."""
TOKEN_BYTES: Final = 8_192
"""Activations of a token: a width of 4,096 in bfloat16, that of an 8B model."""
HEADS: Final = 16
"""Maximum number of chains at a stage."""


def even_parts(parts: int) -> list[LayerRange]:
    """Return all layers in `parts` parts of about one size."""
    cuts = [LAYERS * number // parts for number in range(parts + 1)] if parts else []
    return [LayerRange(first=first, end=end, layers=LAYERS) for first, end in pairwise(cuts)]


class _Books:
    """Implements `ChainBooks` of a stage: activations are zeros, results those of an engine."""

    number = 0

    def __init__(self, host: "SimulatedStage", books: PagedEngine, answering: Engine | None) -> None:
        self._host = host
        self.books = books
        self._answering = answering

    def close(self) -> None:
        return

    def run(self, rows: Sequence[Row], activations: bytes | bytearray | None) -> bytes | list[RowResult]:
        tokens = count_tokens(rows)
        self._host.fed_tokens = tokens
        if self._answering is not None:
            return self._answering.forward(rows)
        self.books.feed(rows)
        return bytes(TOKEN_BYTES * tokens)


class SimulatedStage:
    """A part of a target at a peer: implements `cosine_node.stages.served_chain.ChainHost`. `start` serves it.

    A pass takes `more_s` in addition to `curve`, which is announced.
    """

    token_bytes = TOKEN_BYTES

    def __init__(
        self,
        transport: MemoryTransport,
        layers: LayerRange,
        whole: Callable[[], Engine],
        *,
        curve: CostCurve,
        more_s: float = 0.0,
        target_digest: bytes,
    ) -> None:
        self.transport = transport
        self.layers = layers
        self.curve = curve
        self._more_s = more_s
        self.use = MachineUse()
        self.fed_tokens = 0
        self.is_killed = False
        self._whole = whole
        engine = whole()
        self.numerics = engine.numerics
        self.grammars = engine.grammars if layers.is_last else None
        self.pool_tokens = HEADS * engine.free_tokens
        self._engine_is_free = asyncio.Lock()
        passes = StagePasses(self._compute)
        self.service = StageService(self, transport=transport, target_digest=target_digest, passes=passes)

    async def start(self) -> None:
        await self.service.start()

    def open(self, *, pool_tokens: int, first_sequence: int) -> ChainBooks:
        engine = self._whole()
        assert isinstance(engine, PagedEngine)
        assert engine.free_tokens == pool_tokens, "the whole engine's pool is the size of all"
        if self.layers.is_last:
            engine.opened = first_sequence
            # The facts that the service of a real stage has compiled.
            engine.grammars = self.grammars
            return _Books(self, engine, engine)
        books = PagedEngine(
            PagePool(tokens=pool_tokens),
            vocab_tokens=engine.vocab_tokens,
            context_tokens=engine.context_tokens,
            numerics=self.numerics,
            first_sequence=first_sequence,
        )
        return _Books(self, books, None)

    def free_tokens(self, *, without: Collection[int] = ()) -> int:
        """The whole pool: there is always room for one more chain."""
        del without
        return self.pool_tokens

    def kill(self) -> None:
        """Vanish as after `kill -9`."""
        self.is_killed = True
        self.transport.vanish()

    async def _compute(self, work: Callable[[], _T]) -> _T:
        """Perform work of the engine, which takes the time of the curve."""
        async with self._engine_is_free:
            self.fed_tokens = 0
            found = work()
            if not self.fed_tokens:
                # The answer to a probe, which takes negligible time.
                return found
            seconds = self.curve.seconds(self.fed_tokens) + self._more_s
            self.use.passes += 1
            self.use.tokens += self.fed_tokens
            self.use.busy_s += seconds
            await asyncio.sleep(seconds)
            return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The stages that a head may use, several of which may hold the same layers, and the expected time of a pass.

    `traversal_s` is the time of a pass over one token around the ring; `most_under_way` bounds the passes under
    way.
    """

    stages: Sequence[SimulatedStage]
    traversal_s: float
    most_under_way: int | None = None

    @property
    def slowest(self) -> CostCurve:
        """Return the cost of a pass at the slowest stage."""
        return max((stage.curve for stage in self.stages), key=lambda curve: curve.seconds(1))


class RingFinder:
    """Implements `cosine_node.chains.chain.Finder`: the living stages, in the order of their layers."""

    token_s = 0.0

    def __init__(self, transport: MemoryTransport, ring: Ring, *, target_digest: bytes, whole: Engine) -> None:
        self._transport = transport
        self._ring = ring
        self._target_digest = target_digest
        self._whole = whole
        self._chosen: list[SimulatedStage] = []
        self._stack = AsyncExitStack()

    async def chain(self) -> StageChain:
        """Return the passes of a head over these stages."""
        links = await self.open(first_sequence=0)
        engine = StagedEngine(links, context_tokens=self._whole.context_tokens, grammars=self._whole.grammars)
        return StageChain(engine, self, curve=self._ring.slowest, most_under_way=self._ring.most_under_way)

    async def open(self, *, first_sequence: int) -> StageLinks:
        await self._stack.aclose()
        while True:
            self._chosen = self._living()
            plan = ChainPlan(
                places=tuple(StagePlace(stage.transport.peer_id, stage.layers) for stage in self._chosen),
                target_digest=self._target_digest,
                numerics=self._whole.numerics,
                vocab_tokens=self._whole.vocab_tokens,
                pool_tokens=self._whole.free_tokens,
                first_sequence=first_sequence,
            )
            with suppress(ChainLost):
                return await self._stack.enter_async_context(StageLinks.opened(self._transport, plan))

    def doubt(self) -> bool:
        """Return False: these stages compute correctly."""
        return False

    def curves(self, whole: CostCurve) -> tuple[CostCurve, ...]:
        del whole
        return tuple(stage.curve for stage in self._chosen)

    async def close(self) -> None:
        """End the open chain."""
        await self._stack.aclose()

    def _living(self) -> list[SimulatedStage]:
        """Return the first living stage for each range. Raises `NoChain`."""
        found: dict[LayerRange, SimulatedStage] = {}
        for stage in self._ring.stages:
            if not stage.is_killed:
                found.setdefault(stage.layers, stage)
        held = sorted(found, key=lambda layers: layers.first)
        end = 0
        for layers in held:
            if layers.first != end:
                break
            end = layers.end
        if end != LAYERS:
            raise NoChain(f"Layers from {end} of {LAYERS} are held by no stage.")
        return [found[layers] for layers in held]
