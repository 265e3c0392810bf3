"""A head over stages that it finds by their records, with honest and faulty stages, in virtual time."""

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

import numpy as np

from cosine_engine.base import BadLogits, Engine, OutOfPages, Row, RowResult
from cosine_engine.curve import CostCurve
from cosine_lab.emulation.links import FifoServer, LinkModel, SeededRoute
from cosine_lab.emulation.machine import SimulatedMachine
from cosine_lab.emulation.memory_directory import MemoryDirectory
from cosine_lab.emulation.memory_transport import MemoryNetwork, MemoryTransport, Route
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation.records import DIGEST
from cosine_lab.simulation.stages import HEADS, LAYERS, TOKEN_BYTES, SimulatedStage, even_parts
from cosine_lab.simulation.swarm import SimulatedMember, SimulatedSwarm
from cosine_node.chains.chain import StageChain
from cosine_node.chains.checks import ChainChecks
from cosine_node.chains.engine import StagedEngine
from cosine_node.chains.finder import ChainFinder
from cosine_node.chains.known_stages import ChainNeeds
from cosine_node.passes.runner import PassSpeed, ServedEngine
from cosine_node.stages.frames import feed_messages
from cosine_node.stages.passes import StagePasses
from cosine_node.stages.served_chain import ChainBooks, QueuedFeed, ServedChain
from cosine_node.stages.service import StageService
from cosine_node.verifier.admission import VerifierConfig
from cosine_node.verifier.service import VerifierService
from cosine_p2p.transport.channel import Channel
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.records import Role, StageOffer
from cosine_protocol.stage import Join, LayerRange, Passed
from tests.protocol.samples import record_of
from tests.scenes import as_test, in_virtual_time
from tests.swarm.reference import VOCAB_TOKENS, target_engine

_T = TypeVar("_T")
CURVE: Final = CostCurve(((1, 0.02), (64, 0.04)))
"""The curve of an honest stage."""
ONE_WAY_S: Final = 0.01
WINDOW_BYTES: Final = 1 << 20
"""About the size of a sender's buffers."""


@dataclass(slots=True)
class Conduct:
    """The faults of a stage, which may change while it serves.

    It delays each pass by `late_s`, `hides` the delay, announces `pass_s`, `refuses` each feed with an error,
    `gives_back` each row without tokens, `leaves_out` activations (a last stage claims that none came), or `lies`
    with wrong values. It has room for `most_chains`.
    """

    late_s: float = 0.0
    hides: bool = False
    pass_s: float = CURVE.seconds(1)
    refuses: bool = False
    gives_back: bool = False
    leaves_out: bool = False
    lies: bool = False
    most_chains: int = HEADS


class _ConductedService(StageService):
    conduct: Conduct

    def _open(self, head: Channel, join: Join, network: str) -> ServedChain:
        chain = super()._open(head, join, network)
        # In place of the method.
        chain.__dict__["_feed"] = partial(self._feed, chain, chain._feed)
        return chain

    async def _feed(
        self, chain: ServedChain, feed_rightly: Callable[[QueuedFeed], Awaitable[None]], feed: QueuedFeed
    ) -> None:
        if self.conduct.refuses:
            raise PeerError(ErrorCode.INTERNAL, "a pass failed: RuntimeError")
        if self.conduct.hides:
            # It claims to have forwarded the feed at once; later messages do not count.
            chain.head.post(Passed(feed.number, 0, is_left_out=False))
        if self.conduct.leaves_out and chain.next is not None:
            chain.hosted.books.feed(feed.rows)
            for message in feed_messages(feed.number, feed.rows):
                await chain.next.send(message)
            return
        if self.conduct.leaves_out:
            raise PeerError(ErrorCode.BAD_ACTIVATIONS, "no activations came")
        await feed_rightly(feed)


class _ConductedBooks:
    def __init__(self, inner: ChainBooks, conduct: Conduct, number: int, close: Callable[[], object]) -> None:
        self._inner = inner
        self.number = number
        self._conduct = conduct
        self.books = inner.books
        self.close = close

    def run(self, rows: Sequence[Row], activations: bytes | bytearray | None) -> bytes | list[RowResult]:
        found = self._inner.run(rows, activations)
        # Simulated layers send zeros; wrong values are forwarded, and the last stage returns other tokens.
        if activations is not None and any(activations):
            found = bytes(activations) if isinstance(found, bytes) else [_other(result) for result in found]
        if self._conduct.lies:
            drawn = np.random.default_rng(len(rows)).standard_normal(len(found) // 4).astype("<f4")
            found = drawn.tobytes() if isinstance(found, bytes) else [_other(result) for result in found]
        if self._conduct.gives_back and isinstance(found, list):
            return [RowResult((), error=BadLogits("The model gave NaN or infinite logits.")) for _ in found]
        return found


def _other(result: RowResult) -> RowResult:
    choices = [replace(each, token=(each.token + 1) % VOCAB_TOKENS) for each in result.choices]
    return replace(result, choices=tuple(choices))


class ConductedStage(SimulatedStage):
    """A part of a target with faults."""

    def __init__(self, transport: MemoryTransport, layers: LayerRange, *, target_digest: bytes) -> None:
        super().__init__(transport, layers, target_engine, curve=CURVE, target_digest=target_digest)
        self.numerics = "float32"
        self.conduct = Conduct()
        self._open: set[int] = set()
        self._opened = 0
        self.service = service = _ConductedService(
            self, transport=transport, target_digest=target_digest, passes=StagePasses(self._late)
        )
        service.conduct = self.conduct

    async def _late(self, work: Callable[[], _T]) -> _T:
        await asyncio.sleep(self.conduct.late_s)
        return await self._compute(work)

    def open(self, *, pool_tokens: int, first_sequence: int) -> ChainBooks:
        # Chains that check others have smaller pools.
        self._whole = lambda: ScriptedEngine(vocab_tokens=VOCAB_TOKENS, pool_tokens=pool_tokens)
        if len(self._open) >= self.conduct.most_chains:
            raise OutOfPages("No token slots are free together.")
        inner = super().open(pool_tokens=pool_tokens, first_sequence=first_sequence)
        number = self._opened
        self._opened += 1
        self._open.add(number)
        return _ConductedBooks(inner, self.conduct, number, lambda: self._open.discard(number))

    def free_tokens(self, *, without: Collection[int] = ()) -> int:
        room = self.conduct.most_chains - len(self._open.difference(without))
        return room * target_engine().free_tokens

    @property
    def is_free(self) -> bool:
        """True if no chain has data here."""
        return not self.service.requests and not self.service.waiting_bytes


@dataclass(slots=True)
class ChainSwarm:
    """A swarm with stages by name, a head, and clients."""

    swarm: SimulatedSwarm
    directory: MemoryDirectory = field(default_factory=MemoryDirectory)
    stages: dict[str, ConductedStage] = field(default_factory=dict)
    finder: ChainFinder | None = None
    service: VerifierService | None = None
    checks: ChainChecks | None = None
    sequence: int = 1

    @classmethod
    def make(cls, *, uplink_bits_per_s: float = math.inf) -> "ChainSwarm":
        """Return a swarm whose peers send at this total rate."""
        wires: defaultdict[str, FifoServer] = defaultdict(FifoServer)
        link = LinkModel(one_way_s=ONE_WAY_S, rate_bytes_per_s=uplink_bits_per_s / 8)

        def route(source: str, target: str) -> Route:
            return SeededRoute(link, random.Random(0), wire=wires[source])

        return cls(SimulatedSwarm(MemoryNetwork(routes=route, window_bytes=WINDOW_BYTES)))

    async def stage(self, name: str, part: int = 0, *, parts: int = 2, **conduct: object) -> ConductedStage:
        """Add and announce a stage that holds one of `parts` parts."""
        transport = self.swarm.network.join(name)
        self.swarm._others.append(transport)
        stage = ConductedStage(transport, even_parts(parts)[part], target_digest=self.swarm.facts.digest())
        for key, value in conduct.items():
            setattr(stage.conduct, key, value)
        await stage.start()
        self.stages[name] = stage
        await self.announce(name)
        return stage

    async def announce(self, name: str) -> None:
        stage, digest = self.stages[name], self.swarm.facts.digest()
        pass_us = round(1e6 * stage.conduct.pass_s)
        offer = StageOffer(
            first_layer=stage.layers.first,
            end_layer=stage.layers.end,
            layers=LAYERS,
            wide_tokens=64,
            wide_pass_us=2 * pass_us,
            busy_permille=0,
            # With room for a second chain.
            pool_tokens=2 * target_engine().free_tokens,
        )
        self.sequence += 1
        record = record_of(
            peer_id=name,
            role=Role.STAGE,
            target_digest=digest,
            stage=offer,
            pass_us=pass_us,
            numerics=stage.numerics,
            sequence=self.sequence,
        )
        await self.directory.announce(record, [digest.hex()])

    async def head(self) -> SimulatedMember:
        """Add a head over present stages. Raises `NoChain`."""
        whole: Engine = target_engine()
        identity = self.swarm._next_identity()
        transport = self.swarm.join(identity)
        needs = ChainNeeds(
            target_digest=self.swarm.facts.digest(),
            layers=LAYERS,
            vocab_tokens=whole.vocab_tokens,
            pool_tokens=whole.free_tokens,
            least_pool_tokens=1024,
            token_bytes=TOKEN_BYTES,
        )
        self.finder = finder = ChainFinder(transport, self.directory, needs, chance=random.Random(2).random)
        links = await finder.open(first_sequence=0)
        looking = asyncio.ensure_future(finder.run())
        self.swarm._stack.callback(looking.cancel)
        self.swarm._stack.push_async_callback(finder.close)
        assert finder.found is not None
        wide_s = sum(CURVE.seconds(64) - CURVE.seconds(1) for _ in finder.found.stages)
        curve = CostCurve(((1, finder.found.seconds), (64, finder.found.seconds + wide_s)))
        engine = StagedEngine(links, context_tokens=whole.context_tokens)
        rng = random.Random(1)
        self.checks = checks = ChainChecks(finder, chance=rng.random, draw=rng.randbytes)
        self.swarm._stack.push_async_callback(checks.close)
        runner = StageChain(engine, finder, curve=curve, checks=checks)
        self.service = service = VerifierService(
            ServedEngine(engine=engine, runner=runner, curve=CURVE, speed=PassSpeed(curve, now_s=0.0)),
            identity=identity,
            config=VerifierConfig(
                target_digest=self.swarm.facts.digest(), tokenizer_digest=DIGEST, max_requests=16
            ),
            chain=runner,
        )
        machine = SimulatedMachine(engine, curve, runner=runner)
        return await self.swarm._add(identity, transport, service, engine, machine, Role.VERIFIER, "target", curve)

    @property
    def chosen(self) -> list[str]:
        assert self.finder is not None and self.finder.found is not None
        return [one.peer_id for one in self.finder.found.stages]

    async def still(self) -> None:
        """Assert that unused stages and the head hold no data."""
        await asyncio.sleep(120.0)
        assert self.service is not None
        assert not self.service.requests
        for name, stage in self.stages.items():
            if name not in self.chosen and not stage.is_killed:
                assert stage.is_free, name


@in_virtual_time
async def _in_stages(scene: Callable[..., Awaitable[None]]) -> None:
    swarm = ChainSwarm.make()
    async with swarm.swarm:
        await scene(swarm)


in_stages: Final = as_test(_in_stages, given=1)
"""Decorator of tests: the first argument is a swarm without stages in virtual time."""
