"""The state machines of a client with hostile peers: a session with verifiers and drafters, and look-ups.

The peers' bytes are moves (`target.moves`): the highest bits of each select a peer, the others are as in `serving`.
A corrected message fits the client's request, is consistent with earlier ones, and is signed.
"""

import asyncio
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.virtual_loop import call_at_once
from cosine_lab.rivals import RIVALS
from cosine_p2p.dht.postings import RecordOpener
from cosine_p2p.directory.discover import DiscoverCells
from cosine_p2p.session.job import AnnouncedVerifier, Job, Shared
from cosine_p2p.session.session import Session
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_p2p.strategy.speed_trial import SpeedTrials
from cosine_p2p.text.tokenizer_files import NAMES, TokenizerFiles, fetch_tokenizer_files
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.link import Links
from cosine_p2p.trust.mandates import Coordination, Mandates
from cosine_protocol.codec import FrameDecoder, Message, decode, encode
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.discover import DISCOVER, FilePiece, Records
from cosine_protocol.draft import DRAFT, Assign, Draft, Fragment, Start, Started
from cosine_protocol.errors import CosineError, PeerLost
from cosine_protocol.fields import decode_body, encode_body
from cosine_protocol.identity import Identity, sign
from cosine_protocol.records import seal_record
from cosine_protocol.stream import Account, Hello
from cosine_protocol.stream import Final as FinalMessage
from cosine_protocol.verify import VERIFY, Commit, Credit, Open, Opened, Report, Transcript, Tree
from tests.cosine_p2p.samples import identity_of, record_of, request_of
from tests.fuzz.mutation import mutated_session
from tests.fuzz.serving import MENDED, WAITS_S, mended_bytes
from tests.fuzz.target import moves, script
from tests.fuzz.watching import stream_target
from tests.fuzz.wire import message_of

CLIENT: Final = identity_of(50)
PEERS: Final = tuple(map(identity_of, range(1, 5)))
"""Two verifiers, then two drafters."""
PEER_BITS: Final = 5
KINDS: Final = (STRATEGIES["plain"], *RIVALS.values(), STRATEGIES["cosine"])
"""The first bit of a move that selects a peer."""
SIGNED: Final = 128
"""The bit of a move for a transcript with a commit, and for the signature of a credit's author."""
REQUEST: Final = request_of(CLIENT.peer_id, max_new_tokens=48)
D_0: Final = request_digest(REQUEST)
NUMBER: Final = 4
DEADLINE_S: Final = 60.0


class HostilePeer:
    """A peer that sends the bytes of an input; it has one stream at a time."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.tokens: list[int] = []
        self.heard: list[Message] = []
        self._stream: Stream | None = None
        self._decoder = FrameDecoder()

    async def handle(self, stream: Stream) -> None:
        self._stream, self._decoder = stream, FrameDecoder()
        while data := await stream.read():
            for message in map(decode, self._decoder.feed(data)):
                self.heard.append(message)
                if isinstance(message, Open | Start):
                    self.tokens = list(message.committed)

    async def say(self, data: bytes) -> None:
        if self._stream is not None:
            try:
                await self._stream.write(data)
            except PeerLost:
                self._stream = None

    def sign(self, kind: str, body: bytes) -> bytes:
        return self.identity.sign(kind=kind, digest=D_0, body=body)


def mended(message: Any, *, peer: HostilePeer, is_signed: bool) -> Any:
    """Correct the values that a hostile peer can know: the request's number, its own account, a signature."""
    if isinstance(message, Commit):
        first, position = 0, len(peer.tokens)
        peer.tokens += message.tokens
        digest = roll_digest(D_0, peer.tokens)
        transcript = Transcript(first, min(len(peer.tokens), 131_072), digest)
        signed = sign(peer.identity, transcript, digest=D_0) if is_signed else None
        authors = bytes(author % 4 for author in message.authors[: len(message.tokens)]).ljust(
            len(message.tokens), b"\0"
        )
        return replace(message, number=NUMBER, position=position, digest=digest, authors=authors, transcript=signed)
    if isinstance(message, FinalMessage):
        account = decode_body(Account, message.body)
        digest = roll_digest(D_0, peer.tokens)
        body = encode_body(replace(account, number=NUMBER, tokens=len(peer.tokens), digest=digest))
        return FinalMessage(body, peer.sign("final", body))
    if isinstance(message, Fragment | Credit):
        draft = decode_body(Draft, message.body)
        told = [heard for heard in peer.heard if isinstance(heard, Assign | Open | Tree)]
        base = getattr(told[-1], "base", D_0) if told and is_signed else draft.base
        body = encode_body(replace(draft, number=NUMBER, base=base))
        author = PEERS[2] if isinstance(message, Credit) else peer.identity
        signature = author.sign(kind="fragment", digest=D_0, body=body)
        if isinstance(message, Fragment):
            return Fragment(body, signature)
        return Credit(NUMBER, 1 + (message.author % 3), body, signature)
    return replace(message, number=NUMBER) if hasattr(message, "number") else message


async def _ask(data: bytes) -> None:
    """A session; the first byte selects the strategy, the coordinator, and what drafters see."""
    kind = KINDS[(data[0] if data else 0) % len(KINDS)]
    is_delegated, is_windowed = bool(data) and data[0] >= 128, bool(data) and data[0] & 64 != 0
    network = MemoryNetwork(one_way_s=0.001)
    peers = [HostilePeer(identity) for identity in PEERS]
    for index, peer in enumerate(peers):
        await network.join(peer.identity.peer_id).serve(VERIFY if index < 2 else DRAFT, peer.handle)
    links = Links(network.join(CLIENT.peer_id))
    records = [record_of(identity, now_s=0.0) for identity in PEERS]
    job = Job(
        deadline_s=DEADLINE_S,
        request=REQUEST,
        strategy=kind,
        verifiers=AnnouncedVerifier.by_peer(records[:2]),
        drafters=records[2:] if kind.wants_drafters else (),
        coordination=Coordination.VERIFIER if is_delegated else Coordination.CLIENT,
        prompt_window_tokens=2 if is_windowed else None,
    )
    shared = Shared(
        links=links,
        offload=call_at_once,
        trials={kind.name: SpeedTrials(() if is_delegated else kind.drafter_counts)},
        mandates=Mandates(CLIENT, clock=lambda: 0.0) if is_delegated else None,
        numbers=count(NUMBER),
    )
    session = Session(job, shared)
    asking = asyncio.ensure_future(_collect(session))
    await asyncio.sleep(0.01)
    for how, sent in moves(data[1:]):
        peer = peers[how >> PEER_BITS & 3]
        await peer.say(mended_bytes(how, sent, partial(mended, peer=peer, is_signed=bool(how & SIGNED))))
        await asyncio.sleep(WAITS_S[how >> 3 & 3])
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert len(session.output) <= REQUEST.max_new_tokens
    await links.close()


async def _collect(session: Session) -> None:
    output: list[int] = []
    async for some in session.stream():
        output += some.tokens
        assert len(some.authors) == len(some.tokens)
    assert output == session.output


async def _look_up(data: bytes) -> None:
    """A light client's look-up and its fetch of tokenizer files from a hostile node."""
    network = MemoryNetwork(one_way_s=0.001)
    peer = HostilePeer(PEERS[0])
    await network.join(peer.identity.peer_id).serve(DISCOVER, peer.handle)
    transport = network.join(CLIENT.peer_id)
    noted: list[str] = []
    cells = DiscoverCells(
        transport,
        [peer.identity.peer_id],
        opener=RecordOpener(),
        note_record=lambda record: noted.extend(record.addresses),
        clock=lambda: 0.0,
    )
    files = TokenizerFiles({"tokenizer.json": b"{}", "vocab.txt": b"a"})
    fetches = bool(data) and data[0] & 1
    asked = (
        fetch_tokenizer_files(transport, peer.identity.peer_id, files.digest) if fetches else cells.read(["c", "d"])
    )
    asking = asyncio.ensure_future(asked)
    await asyncio.sleep(0.01)
    for how, sent in moves(data[1:]):

        def mend(message: Any, how: int = how) -> Any:
            if isinstance(message, FilePiece):
                name = NAMES[(how >> PEER_BITS) % len(NAMES)]
                piece = files.files.get(name, b"")
                return replace(message, total_bytes=len(piece), data=piece)
            if isinstance(message, Records):
                record = record_of(PEERS[1], now_s=0.0)
                return replace(message, records=(*message.records[:8], seal_record(record, PEERS[1], key="c")))
            return message

        await peer.say(mended_bytes(how, sent, mend))
        await asyncio.sleep(WAITS_S[how >> 3 & 3])
    asking.cancel()
    (result,) = await asyncio.gather(asking, return_exceptions=True)
    assert isinstance(result, dict | TokenizerFiles | CosineError | asyncio.CancelledError), result
    await cells.close()


def _session_seeds() -> list[bytes]:
    hello = encode(message_of(Hello))
    verifier, drafter = 0, 2 << PEER_BITS
    opened, started = encode(message_of(Opened)), encode(message_of(Started))
    commit, final = (encode(message_of(cls)) for cls in (Commit, FinalMessage))
    fragment, credit, report = (encode(message_of(cls)) for cls in (Fragment, Credit, Report))
    seeds = []
    for index in range(len(KINDS)):
        says = [(verifier, hello), (drafter, hello), (verifier | MENDED, opened), (drafter | MENDED | 8, started)]
        says += [(verifier | MENDED | 8, commit), (drafter | MENDED | SIGNED | 8, fragment)]
        says += [(verifier | MENDED | SIGNED | 8, commit)] * 2 + [(verifier | MENDED, final)]
        seeds.append(bytes([index]) + script(*says))
        says[1] = (drafter, encode(replace(message_of(Hello), features=("window",))))
        seeds.append(bytes([64 + (index - 64) % len(KINDS)]) + script(*says))
    says = [(verifier, hello), (verifier | MENDED, opened), (verifier | MENDED | 8, report)]
    says += [(verifier | MENDED | 8, credit), (verifier | MENDED | 8, commit), (verifier | MENDED, final)]
    for mark, features in ((128, ("mandate",)), (192, ("mandate", "window"))):
        cosine = mark + (len(KINDS) - 1 - mark) % len(KINDS)
        said = encode(replace(message_of(Hello), features=features))
        seeds.append(bytes([cosine]) + script((verifier, said), *says[1:]))
    return seeds


def _look_up_seeds() -> list[bytes]:
    hello, records, piece = (encode(message_of(cls)) for cls in (Hello, Records, FilePiece))
    answers = [encode(replace(message_of(Records), number=number)) for number in (1, 2)]
    pieces = [encode(replace(message_of(FilePiece), number=1 + index)) for index in range(len(NAMES))]
    ways = [(MENDED | 8 | (index % 8) << PEER_BITS, sent) for index, sent in enumerate(pieces)]
    return [
        b"\0" + script((0, hello), *((MENDED, answer) for answer in answers)),
        b"\0" + script((0, hello), (8, records)),
        b"\1" + script((0, hello), *ways),
        b"\1" + script((0, hello), (8, piece)),
    ]


TARGETS: Final = {
    "session": stream_target(_ask, _session_seeds, mutate=mutated_session),
    "look-up": stream_target(_look_up, _look_up_seeds, mutate=mutated_session),
}
