"""A client that speaks raw messages to one service in virtual time, and what a scripted target would answer."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

from cosine_engine.base import BadLogits, Engine, Row, RowResult
from cosine_engine.curve import CostCurve
from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.scripted_engine import ScriptedEngine, best_choice, keyed_scores
from cosine_p2p.transport.base import Stream, StreamHandler, Transport
from cosine_p2p.transport.channel import Channel
from cosine_protocol.codec import Message
from cosine_protocol.errors import PeerLost
from cosine_protocol.identity import Identity
from cosine_protocol.request import Request, Sampling
from tests.scenes import Scene, Test, as_test

TARGET: Final = bytes(32)
TOKENIZER: Final = bytes([1]) * 32
SERVER: Final = Identity.from_seed(bytes([7]) * 32)
FLAT: Final = CostCurve(((1, 0.01), (64, 0.01)))
TIMEOUT_S: Final = 10.0

_M = TypeVar("_M")


class Service(Protocol):
    """The methods that a verifier and a drafter have in common."""

    async def start(self, transport: Transport) -> None: ...

    async def handle(self, stream: Stream) -> None: ...

    async def run(self) -> None: ...


class SickEngine(ScriptedEngine):
    """A scripted engine whose choices are damaged for chosen prompts, by their first token."""

    def __init__(self, *, sick_tokens: frozenset[int] = frozenset(), **options: Any) -> None:
        super().__init__(**options)
        self._sick_tokens = sick_tokens

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        healthy = super().forward(rows)
        return [
            RowResult((), error=BadLogits("the logits hold NaN")) if row.tokens[0] in self._sick_tokens else result
            for row, result in zip(rows, healthy, strict=True)
        ]


def request_of(
    client: str, *, prompt: tuple[int, ...] = (1, 2, 3), max_new_tokens: int = 8, **changes: Any
) -> Request:
    """A greedy request of this client for the scripted target."""
    request = Request(
        target_digest=TARGET,
        tokenizer_digest=TOKENIZER,
        numerics="scripted",
        prompt=prompt,
        sampling=Sampling(),
        eos=(),
        client=client,
        nonce=bytes(16),
        max_new_tokens=max_new_tokens,
    )
    return replace(request, **changes)


def expected_output(request: Request, engine: ScriptedEngine) -> tuple[int, ...]:
    """The stream a request stands for, one token after the other, without any tree."""
    tokens = list(request.prompt)
    output: list[int] = []
    while len(output) < request.max_new_tokens and not (output and output[-1] in request.eos):
        logits = engine.logits_after(tokens)
        scores = keyed_scores(logits, request.sampling, seen=tokens, position=len(output))
        output.append(best_choice(scores).token)
        tokens.append(output[-1])
    return tuple(output)


@dataclass(slots=True)
class Caller:
    """One client's stream to the service."""

    peer_id: str
    channel: Channel
    heard: list[Message] = field(default_factory=list)

    def post(self, *messages: Message) -> None:
        for message in messages:
            assert self.channel.post(message)

    async def next(self) -> Message:
        async with asyncio.timeout(TIMEOUT_S):
            message = await self.channel.receive()
        self.heard.append(message)
        return message

    async def until(self, kind: type[_M], *, number: int | None = None) -> _M:
        """The next message of a kind; those before it are in `heard`."""
        while True:
            message = await self.next()
            if isinstance(message, kind) and number in (None, getattr(message, "number", None)):
                return message

    async def hear_for(self, seconds: float) -> list[Message]:
        """Everything heard in a span of time."""
        heard: list[Message] = []
        try:
            async with asyncio.timeout(seconds):
                while True:
                    heard.append(await self.channel.receive())
        except TimeoutError:
            return heard


@dataclass(slots=True)
class Bench:
    """A served service and ways to call it."""

    service: Any
    engine: Any
    network: MemoryNetwork
    protocol: str
    loop_task: "asyncio.Task[None]"
    callers: list[Caller] = field(default_factory=list)

    async def caller(self, protocol: str | None = None) -> Caller:
        """A further client, of another protocol where one is given."""
        identity = Identity.from_seed(bytes([100 + len(self.callers)]) * 32)
        transport = self.network.join(identity.peer_id)
        protocol = protocol or self.protocol
        channel = Channel(await transport.dial(SERVER.peer_id, protocol), protocol)
        await channel.__aenter__()
        caller = Caller(identity.peer_id, channel)
        self.callers.append(caller)
        return caller

    async def hang_up(self, caller: Caller) -> None:
        """End a client's stream as a lost connection does."""
        self.callers.remove(caller)
        await caller.channel.__aexit__(None, None, None)


@asynccontextmanager
async def serving(service: Service, engine: Engine, protocol: str) -> AsyncIterator[Bench]:
    """Serve; at the end the loop must still be alive: no message may kill it."""
    network = MemoryNetwork(one_way_s=0.001)
    transport = network.join(SERVER.peer_id)
    await service.start(transport)
    loop_task = asyncio.ensure_future(service.run())
    bench = Bench(service, engine, network, protocol, loop_task)
    try:
        yield bench
        assert not loop_task.done(), "the service's loop ended"
    finally:
        for caller in bench.callers:
            await caller.channel.__aexit__(None, None, None)
        loop_task.cancel()
        await asyncio.gather(loop_task, return_exceptions=True)
        await transport.close()


def played(play: Callable[..., None], *options: Any, **named: Any) -> Callable[[Scene], Test]:
    """Make a test of a scene with a bench and a caller, which `play` provides."""
    return as_test(lambda scene: play(scene, *options, **named), given=2)


async def is_lost(caller: Caller) -> bool:
    """True if the server has ended a stream."""
    try:
        while True:
            await caller.next()
    except PeerLost:
        return True
    except TimeoutError:
        return False


async def answers_of(handler: StreamHandler, protocol: str, *questions: Message) -> list[Message]:
    """What a service that answers each message with one answers on a stream."""
    network = MemoryNetwork()
    server, client = network.join("server"), network.join("client")
    await server.serve(protocol, handler)
    answers = []
    async with Channel(await client.dial("server", protocol), protocol) as channel:
        for question in questions:
            channel.post(question)
            answers.append(await channel.receive())
    await client.close()
    await server.close()
    return answers
