"""A stage of a chain and two strangers: one claims to be the head, the other the previous stage."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final

from cosine_engine.base import Choice, Row, RowResult
from cosine_engine.constraints.grammars import Grammars
from cosine_engine.kv_pool import PagePool
from cosine_engine.paged import PagedEngine
from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.virtual_loop import call_at_once
from cosine_node.stages.passes import StagePasses
from cosine_node.stages.service import StageService
from cosine_protocol.codec import encode
from cosine_protocol.stage import (
    Activations,
    FeedPart,
    FeedPass,
    Follow,
    Join,
    KeepPath,
    LayerRange,
    OpenSequence,
    Probe,
    PruneNodes,
    ReleaseSequence,
    ReserveRoom,
    ReusePrefix,
)
from cosine_protocol.stream import Hello
from tests.fuzz.serving import CALLERS, MENDED, SECOND, HostileStream, play
from tests.fuzz.target import script
from tests.fuzz.watching import stream_target
from tests.fuzz.wire import message_of
from tests.node.peers import SERVER, TARGET

CHAIN: Final = bytes(16)
TOKEN_BYTES: Final = 8
POOL_TOKENS: Final = 64


class ScriptedStage:
    """Implements `ChainBooks` and `ChainHost`: the last layers of a model that always chooses token 0."""

    layers = LayerRange(first=2, end=4, layers=4)
    numerics = "float32"
    grammars: Grammars | None = None
    token_bytes = TOKEN_BYTES
    pool_tokens = POOL_TOKENS
    number = 0

    def __init__(self) -> None:
        self.books = self._new(0)
        self.is_open = False

    def _new(self, first_sequence: int) -> PagedEngine:
        pool = PagePool(tokens=POOL_TOKENS)
        sizes: dict[str, Any] = {"vocab_tokens": 256, "context_tokens": POOL_TOKENS, "numerics": self.numerics}
        return PagedEngine(pool, **sizes, first_sequence=first_sequence)

    def open(self, *, first_sequence: int, **_: object) -> "ScriptedStage":
        assert not self.is_open, "a chain was set up before the one before had ended"
        self.books, self.is_open = self._new(first_sequence), True
        return self

    def free_tokens(self, *, without: Collection[int] = ()) -> int:
        return POOL_TOKENS

    def run(self, rows: Sequence[Row], activations: bytes | bytearray | None) -> bytes | list[RowResult]:
        assert activations is not None and len(activations) == TOKEN_BYTES * sum(len(row.tokens) for row in rows)
        self.books.feed(rows)
        return [RowResult(tuple(Choice(0, 0.5) for _ in row.tokens[row.scored_from :])) for row in rows]

    def close(self) -> None:
        self.is_open = False


def mend(message: Any, stream: HostileStream) -> Any:
    """Correct the values that only the chain's head can know."""
    match message:
        case Join():
            return replace(
                message,
                chain=CHAIN,
                target_digest=TARGET,
                numerics="float32",
                first_layer=2,
                end_layer=4,
                layers=4,
                source=CALLERS[1].peer_id,
                target=None,
                window_pool_tokens=None,
                window_tokens=None,
                first_sequence=0,
            )
        case Follow():
            return Follow(CHAIN)
        case FeedPass():
            rows = tuple(
                replace(row, sequence=row.sequence % 2, tokens=tuple(token % 256 for token in row.tokens))
                for row in message.rows
            )
            sizes = TOKEN_BYTES * sum(len(row.tokens) for row in rows)
            return replace(message, rows=rows, activation_bytes=sizes if message.activation_bytes else 0)
        case OpenSequence() | ReusePrefix() | ReserveRoom() | KeepPath() | PruneNodes() | ReleaseSequence():
            return replace(message, sequence=message.sequence % 2)
    return message


async def _serve(data: bytes) -> None:
    stage = ScriptedStage()
    transport = MemoryNetwork(one_way_s=0.001).join(SERVER.peer_id)

    passes = StagePasses(call_at_once)
    service = StageService(stage, transport=transport, target_digest=TARGET, passes=passes, inbox_bytes=4096)
    await play(data, service.handle, mend)
    assert not service.requests and not stage.is_open and not service.waiting_bytes, "a chain outlives its streams"


def seeds() -> list[bytes]:
    hello = encode(message_of(Hello))
    begun = [
        (0, hello),
        (SECOND, hello),
        (MENDED | 8, encode(message_of(Join))),
        (SECOND | MENDED | 8, encode(message_of(Follow))),
    ]
    feed = message_of(FeedPass)
    says = [
        replace(message_of(OpenSequence), sequence=0),
        replace(feed, rows=tuple(replace(row, sequence=0) for row in feed.rows)),
        Activations(bytes(3 * TOKEN_BYTES)),
        message_of(KeepPath),
        message_of(PruneNodes),
        message_of(ReserveRoom),
        message_of(ReleaseSequence),
    ]
    probe = Probe(bytes(16), (FeedPart(feed.number, 0, 1),))
    of_first = [replace(each, sequence=0) if hasattr(each, "sequence") else each for each in says]
    moves = [(SECOND | MENDED | 8, encode(each)) for each in of_first]
    many = [(SECOND | MENDED | 8, encode(PruneNodes(0, (number,)))) for number in range(200, 300)]
    return [
        script(*begun, *moves),
        script(*begun, *moves[:3], *many),
        script(*begun, *moves[:3], (0, encode(probe)), (0, hello), (MENDED, encode(message_of(Join)))),
    ]


TARGETS: Final = {"stage": stream_target(_serve, seeds)}
