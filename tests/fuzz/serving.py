"""The state machines of a node that take a stranger's stream: verifier, audits, drafter, directory, status, gate.

The stranger's bytes are moves (`target.moves`). The bits of each select one of two streams, a frame or bare bytes,
whether values that cannot be guessed are corrected (its request, digests it has heard, its signature), and the
pause after it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from cosine_lab.emulation.machine import InlineRunner
from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import call_at_once
from cosine_node.drafter.service import DrafterConfig, DrafterService
from cosine_node.passes.runner import ServedEngine
from cosine_node.serving.discover_service import DiscoverService
from cosine_node.serving.status_service import StatusService
from cosine_node.verifier.admission import VerifierConfig
from cosine_node.verifier.coordination import RequestCoordinator
from cosine_node.verifier.service import VerifierService
from cosine_p2p.directory.vivaldi import Vivaldi
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_protocol.audit import AskAudit
from cosine_protocol.codec import FrameDecoder, Message, decode, encode, encode_frame
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.discover import AskFile, AskRecords, AskStatus
from cosine_protocol.draft import Advance, Assign, Mandate, Release, Start
from cosine_protocol.errors import PeerLost, RemoteProtocolError
from cosine_protocol.fields import decode_body
from cosine_protocol.identity import Identity, sign
from cosine_protocol.membership import Member, Revoked
from cosine_protocol.request import Request
from cosine_protocol.stream import Hello, Ping
from cosine_protocol.verify import Cancel, Commit, Delegate, Open, Pacing, Revoke, Transcript, Tree
from tests.cosine_p2p.private_swarm import PrivateSwarm
from tests.fuzz.target import moves, script
from tests.fuzz.watching import stream_target
from tests.fuzz.wire import message_of
from tests.node.peers import FLAT, SERVER, TARGET, TOKENIZER, request_of

CALLERS: Final = (Identity.from_seed(bytes([100]) * 32), Identity.from_seed(bytes([101]) * 32))
DRAFTER: Final = Identity.from_seed(bytes([9]) * 32)
NOW_S: Final = 5000.0
WAITS_S: Final = (0.0, 0.02, 0.3, 2.5)
"""Nothing, less than a pass, some passes, and longer than a drafter waits for a silent client."""
SECOND, BARE, MENDED = 1, 2, 4
"""The bits of a move: the second stream, bytes without a frame, corrected. The next two select the pause."""
LEAVE_S: Final = 3.0
"""Longer than a channel takes to end."""
Serve = Callable[[Stream], Awaitable[None]]
Mend = Callable[[Any, "HostileStream"], Any]
"""Corrects the values of a message that cannot be guessed."""


class HostileStream:
    """The service's end of a stream on which a stranger sends an input; `heard` are the service's messages."""

    def __init__(self, peer_id: str) -> None:
        self.peer_id = peer_id
        self.heard: list[Message] = []
        self._decoder = FrameDecoder()
        self._unread: deque[bytes] = deque()
        self._has_unread = asyncio.Event()
        self._is_over = False

    def say(self, data: bytes) -> None:
        self._unread.append(data)
        self._has_unread.set()

    async def read(self) -> bytes:
        while not self._unread and not self._is_over:
            self._has_unread.clear()
            await self._has_unread.wait()
        return self._unread.popleft() if self._unread else b""

    async def write(self, data: bytes) -> None:
        if self._is_over:
            raise PeerLost(self.peer_id, "the stream is closed")
        self.heard += map(decode, self._decoder.feed(data))

    def close(self) -> None:
        self._is_over = True
        self._has_unread.set()

    def note_flood(self) -> None:
        return


async def play(data: bytes, serve: Serve, mend: Mend) -> None:
    """Let two strangers make the moves of an input; a stream that has ended is opened again."""
    streams: dict[Identity, HostileStream] = {}
    handled: dict[Identity, asyncio.Future[None]] = {}
    for how, sent in moves(data):
        caller = CALLERS[how & SECOND]
        if caller not in handled or handled[caller].done():
            streams[caller] = HostileStream(caller.peer_id)
            handled[caller] = asyncio.ensure_future(serve(streams[caller]))

        def mended(message: Any, to: HostileStream = streams[caller]) -> Any:
            return mend(message, to)

        streams[caller].say(mended_bytes(how, sent, mended))
        await asyncio.sleep(WAITS_S[how >> 3 & 3])
    for stream in streams.values():
        stream.close()
    await asyncio.sleep(LEAVE_S)
    assert all(future.done() for future in handled.values()), "a service goes on after its stream has ended"


def mended_bytes(how: int, sent: bytes, mend: Callable[[Any], Any]) -> bytes:
    """The bytes of a move as they are sent."""
    if how & BARE:
        return sent
    if how & MENDED:
        try:
            sent = encode(mend(decode(sent)))
        except RemoteProtocolError:
            return encode_frame(sent)
    return encode_frame(sent)


class _Caller:
    """A stranger's memory, for consistent messages: its last request, and the last prefix it has heard."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self._vocab_tokens = engine.vocab_tokens
        self._requests: dict[str, tuple[Request, bytes]] = {}

    def mend(self, message: Any, stream: HostileStream) -> Any:
        match message:
            case Open() | Start() | AskAudit():
                # A request of this client for the service's target, within its vocabulary and context.
                asked = replace(
                    message.request,
                    target_digest=TARGET,
                    tokenizer_digest=TOKENIZER,
                    numerics="scripted",
                    client=stream.peer_id,
                    prompt=tuple(token % self._vocab_tokens for token in message.request.prompt[:64]) or (1,),
                    max_new_tokens=1 + message.request.max_new_tokens % 256,
                )
                digest = message.d_0 if isinstance(message, Start) else None
                self._requests[stream.peer_id] = asked, digest or request_digest(asked)
                message = replace(message, number=1 + message.number % 3, request=asked)
        if stream.peer_id not in self._requests:
            return message
        _, d_0 = self._requests[stream.peer_id]
        identity = next(one for one in CALLERS if one.peer_id == stream.peer_id)
        match message:
            case Open() | Start():
                tokens = tuple(token % self._vocab_tokens for token in message.committed[:8])
                return replace(message, committed=tokens)
            case AskAudit():
                tokens = tuple(token % self._vocab_tokens for token in message.tokens[:64]) or (1,)
                first = min(decode_body(Transcript, message.transcript.body).first, len(tokens) - 1)
                signed = sign(identity, Transcript(first, len(tokens), roll_digest(d_0, tokens)), digest=d_0)
                return replace(message, tokens=tokens, author=stream.peer_id, transcript=signed)
            case Delegate():
                mandate = Mandate(SERVER.peer_id, (DRAFTER.peer_id,) * 2, 1000, NOW_S, 60.0, 2)
                signed_mandate = sign(identity, mandate, digest=d_0)
                return replace(message, number=1 + message.number % 3, mandate=signed_mandate)
            case Tree() | Assign():
                # The end of the stream, as far as the caller has heard.
                told = [
                    (one.position + len(one.tokens), one.digest) for one in stream.heard if isinstance(one, Commit)
                ]
                position, digest = told[-1] if told else (0, d_0)
                return replace(message, number=1 + message.number % 3, base=digest, position=position)
            case Cancel() | Revoke() | Advance() | Release():
                return replace(message, number=1 + message.number % 3)
        return message


@asynccontextmanager
async def _running(service: Any, engine: ScriptedEngine) -> AsyncIterator[None]:
    """Run the loop of a service; at the end it still runs, and no request or page of strangers is left."""
    loop_task = asyncio.ensure_future(service.run())
    try:
        yield
        assert not loop_task.done(), "the service's loop ended"
        assert service.requests == 0, "a request outlives its stream"
        assert engine.open_sequences == 0, "pages outlive their request"
    finally:
        loop_task.cancel()
        await asyncio.gather(loop_task, return_exceptions=True)


async def _verify(data: bytes, *, audits: bool) -> None:
    engine = ScriptedEngine()
    transport = MemoryNetwork(one_way_s=0.001).join(SERVER.peer_id)
    service = VerifierService(
        ServedEngine(engine=engine, runner=InlineRunner(engine, FLAT), curve=FLAT),
        identity=SERVER,
        config=VerifierConfig(target_digest=TARGET, tokenizer_digest=TOKENIZER, max_requests=2),
        coordinator=RequestCoordinator(transport, offload=call_at_once, clock=lambda: NOW_S),
    )
    async with _running(service, engine):
        await play(data, service.audits.handle if audits else service.handle, _Caller(engine).mend)
    await transport.close()


async def _draft(data: bytes) -> None:
    engine = ScriptedEngine()
    service = DrafterService(
        ServedEngine(engine=engine, runner=InlineRunner(engine, FLAT), curve=FLAT),
        identity=SERVER,
        config=DrafterConfig(tokenizer_digest=TOKENIZER, max_requests=2),
        clock=lambda: NOW_S,
    )
    async with _running(service, engine):
        await play(data, service.handle, _Caller(engine).mend)


async def _discover(data: bytes) -> None:
    async def read_records(cell: str) -> Sequence[bytes]:
        return [bytes(4096)] * 70 if len(cell) % 2 else []

    files = TokenizerFiles({"tokenizer.json": bytes(300_000), "vocab.txt": b"a"})
    service = DiscoverService(read_records, files, clock=lambda: NOW_S)

    def mend(message: Any, stream: HostileStream) -> Any:
        return replace(message, tokenizer_digest=files.digest) if isinstance(message, AskFile) else message

    await play(data, service.handle, mend)


async def _tell_status(data: bytes) -> None:
    service = StatusService(lambda: (b"", 1, 2), vivaldi=Vivaldi(chance=Random(1).random))
    await play(data, service.handle, lambda message, stream: message)


async def _admit(data: bytes) -> None:
    """The gate of a private swarm before a status service; a corrected stranger has certificates."""
    swarm = PrivateSwarm()
    gate = PeerGate(swarm.member(SERVER.peer_id))
    service = StatusService(lambda: (b"", 1, 2))

    async def serve(stream: Stream) -> None:
        admitted = await gate.admit(stream)
        if admitted is not None:
            await service.handle(admitted)

    def mend(message: Any, stream: HostileStream) -> Any:
        match message:
            case Member():
                return replace(message, certificate=swarm.admit(stream.peer_id))
            case Revoked():
                return replace(
                    message, revocations=swarm.revoke(CALLERS[0].peer_id, sequence=len(stream.heard) + 1)
                )
        return message

    await play(data, serve, mend)


def _verify_seeds() -> list[bytes]:
    hello, own = encode(message_of(Hello)), request_of(CALLERS[0].peer_id, max_new_tokens=200)
    free = replace(message_of(Open), request=own, committed=())
    asked = (Tree, Delegate, Cancel, Revoke)
    plain = encode(replace(free, pacing=Pacing.PLAIN))
    says = [(MENDED | 8, encode(message_of(cls))) for cls in asked]
    return [
        script((0, hello), (MENDED | 8, encode(free)), *says),
        script((0, hello), (MENDED | 16, plain), *[(MENDED | 8, encode(message_of(Tree)))] * 3),
        script((1, hello), (MENDED | 1, encode(free)), (MENDED | 1, encode(free)), (2, encode_frame(hello)[:3])),
        script((0, hello), (MENDED | 16, encode(message_of(AskAudit))), (0, encode(message_of(Ping)))),
    ]


def _draft_seeds() -> list[bytes]:
    hello = encode(message_of(Hello))
    asked = replace(message_of(Start), request=request_of(CALLERS[0].peer_id), committed=())
    start, windowed = encode(asked), encode(replace(asked, d_0=bytes(16)))
    says = [(MENDED | 16, encode(message_of(cls))) for cls in (Assign, Advance, Release)]
    return [
        script((0, hello), (MENDED | 16, start), *says),
        script((1, hello), (MENDED | 1, start), (MENDED, start)),
        script((0, hello), (MENDED | 16, windowed), *says),
    ]


def _other_seeds() -> list[bytes]:
    hello = encode(message_of(Hello))
    asked = (AskRecords, AskFile, AskStatus)
    return [
        *(script((0, hello), (MENDED | 8, encode(message_of(cls)))) for cls in asked),
        script((MENDED, encode(message_of(Member))), (MENDED, encode(message_of(Revoked))), (0, hello)),
        script(
            (MENDED, encode(replace(message_of(Member), revocations=0))),
            (0, hello),
            (0, encode(message_of(AskStatus))),
        ),
    ]


TARGETS: Final = {
    "verifier": stream_target(partial(_verify, audits=False), _verify_seeds),
    "auditor": stream_target(partial(_verify, audits=True), _verify_seeds),
    "drafter": stream_target(_draft, _draft_seeds),
    "directory": stream_target(_discover, _other_seeds),
    "status": stream_target(_tell_status, _other_seeds),
    "gate": stream_target(_admit, _other_seeds),
}
