"""A whole swarm on the in-memory network: real services, coordinator and client, scripted or real engines."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from cosine_node.drafter.service import DrafterConfig, DrafterService
from cosine_node.engine.base import Engine
from cosine_node.engine.curve import CostCurve
from cosine_node.engine.scripted import ScriptedEngine
from cosine_node.runner import InlineRunner, Runner
from cosine_node.verifier.service import VerifierConfig, VerifierService
from cosine_p2p.client import AsyncClient
from cosine_p2p.directory import MemoryDirectory
from cosine_p2p.tokenizer import TextCodec
from cosine_p2p.transport.base import StreamHandler
from cosine_p2p.transport.memory import MemoryNetwork, MemoryTransport
from cosine_protocol.identity import Identity
from cosine_protocol.protocols import DRAFT
from cosine_protocol.records import NodeRecord, Role

TARGET = "zoo:target"
DIGEST = bytes(32)
VERIFY_CURVE = CostCurve(((1, 0.060), (4, 0.060), (8, 0.066), (16, 0.082), (32, 0.117)))
DRAFT_CURVE = CostCurve(((1, 0.006), (8, 0.00625), (16, 0.0075), (32, 0.0099)))


class LetterCodec(TextCodec):
    """One token a character: token t is `chr(48 + t)`."""

    def __init__(self) -> None:
        return

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(ord(letter) - 48 for letter in text)

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(48 + token) for token in tokens)


@dataclass(slots=True)
class Member:
    """A node of the swarm."""

    identity: Identity
    transport: MemoryTransport
    service: VerifierService | DrafterService
    engine: Engine
    task: asyncio.Task[None]

    async def kill(self) -> None:
        """Vanish as after `kill -9`."""
        self.transport.vanish()
        self.task.cancel()


@dataclass(slots=True)
class _ClientSwarm:
    transport: MemoryTransport
    directory: MemoryDirectory
    codec: TextCodec

    async def text_codec(self, verifiers: Sequence[NodeRecord]) -> TextCodec:
        return self.codec

    def choose_digest(self, name: str, offered: Sequence[bytes]) -> bytes:
        return offered[0]

    async def close(self) -> None:
        await self.transport.close()


@dataclass(slots=True)
class MemorySwarm:
    """Use `async with`, inside `run_virtual`."""

    one_way_s: float = 0.005
    codec: TextCodec = field(default_factory=LetterCodec)
    eos: tuple[int, ...] = ()
    numerics: str = "scripted"
    network: MemoryNetwork = field(init=False)
    directory: MemoryDirectory = field(default_factory=MemoryDirectory)
    members: list[Member] = field(default_factory=list)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _seeds: int = 0

    async def __aenter__(self) -> "MemorySwarm":
        self.network = MemoryNetwork(one_way_s=self.one_way_s)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        for member in self.members:
            member.task.cancel()
            await member.transport.close()
        await asyncio.gather(*(member.task for member in self.members), return_exceptions=True)

    def _identity(self) -> Identity:
        self._seeds += 1
        return Identity.from_seed(self._seeds.to_bytes(32, "big"))

    async def verifier(
        self,
        engine: Engine | None = None,
        *,
        curve: CostCurve = VERIFY_CURVE,
        max_requests: int = 16,
        runner: Runner | None = None,
    ) -> Member:
        engine = engine or ScriptedEngine()
        identity = self._identity()
        config = VerifierConfig(target_digest=DIGEST, tokenizer_digest=DIGEST, max_requests=max_requests)
        service = VerifierService(
            engine=engine,
            runner=runner or InlineRunner(engine, curve),
            curve=curve,
            identity=identity,
            config=config,
        )
        return await self._add(identity, service, engine, Role.VERIFIER, "target", curve)

    async def drafter(
        self, engine: Engine | None = None, *, curve: CostCurve = DRAFT_CURVE, domain: str = "code"
    ) -> Member:
        engine = engine or ScriptedEngine(fidelity=0.7, drafter_seed=self._seeds)
        identity = self._identity()
        service = DrafterService(
            engine=engine,
            runner=InlineRunner(engine, curve),
            curve=curve,
            identity=identity,
            config=DrafterConfig(tokenizer_digest=DIGEST),
        )
        return await self._add(identity, service, engine, Role.DRAFTER, domain, curve)

    async def drafter_with(self, serve: Callable[[Identity], StreamHandler], *, domain: str = "code") -> str:
        """A drafter of the test's own making; its peer id."""
        identity = self._identity()
        await self.network.join(identity.peer_id).serve(DRAFT, serve(identity))
        record = self._record(identity, Role.DRAFTER, domain, DRAFT_CURVE, ScriptedEngine())
        await self.directory.announce(record, [TARGET])
        return identity.peer_id

    async def client(self, **options: Any) -> AsyncClient:
        """A client that stays until the swarm ends; signatures are checked on the event loop."""

        async def join() -> _ClientSwarm:
            return _ClientSwarm(self.network.join(self._identity().peer_id), self.directory, self.codec)

        client = AsyncClient(join=join, offload=_at_once, **options)
        return await self._stack.enter_async_context(client)

    async def _add(
        self,
        identity: Identity,
        service: VerifierService | DrafterService,
        engine: Engine,
        role: Role,
        domain: str,
        curve: CostCurve,
    ) -> Member:
        transport = self.network.join(identity.peer_id)
        await service.start(transport)
        task = asyncio.ensure_future(service.run())
        member = Member(identity, transport, service, engine, task)
        self.members.append(member)
        await self.directory.announce(self._record(identity, role, domain, curve, engine), [TARGET])
        return member

    def _record(self, identity: Identity, role: Role, domain: str, curve: CostCurve, engine: Engine) -> NodeRecord:
        return NodeRecord(
            schema=1,
            peer_id=identity.peer_id,
            role=role,
            target=TARGET,
            target_digest=DIGEST,
            tokenizer_digest=DIGEST,
            numerics=engine.numerics,
            model="scripted",
            expertise=(domain,),
            capacity_requests=16,
            load_requests=0,
            pass_us=round(1e6 * curve.seconds(1)),
            context_tokens=engine.context_tokens,
            eos=self.eos,
            addresses=(),
            software="test",
            emulated="",
            sequence=1,
            issued_at_s=0.0,
            lifetime_s=600.0,
        )


async def _at_once(check: Callable[[], None]) -> None:
    check()
