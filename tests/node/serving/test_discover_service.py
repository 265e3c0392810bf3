"""Records of the directory and tokenizer files for clients outside the DHT; each cell is looked up once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_node.serving.discover_service import (
    ANSWERS_S,
    QUESTION_BURST,
    QUESTION_RATE,
    REUSE_S,
    DiscoverService,
)
from cosine_p2p.text.tokenizer_files import TokenizerFiles, expanded
from cosine_p2p.transport.channel import Channel
from cosine_protocol.codec import Message
from cosine_protocol.discover import DISCOVER, MAX_CELL_OWNERS, AskFile, AskRecords, FilePiece, Records
from cosine_protocol.errors import ErrorCode, PeerLost
from cosine_protocol.fields import MAX_CHUNK_BYTES, MAX_FILE_BYTES
from cosine_protocol.stream import Error
from tests.node.peers import answers_of
from tests.scenes import in_virtual_time

FILES = TokenizerFiles({"tokenizer.json": bytes(range(256)) * 3000, "vocab.txt": b"a"})


async def no_records(key: str) -> Sequence[bytes]:
    return ()


async def ask(service: DiscoverService, *questions: Message) -> list[Message]:
    return await answers_of(service.handle, DISCOVER, *questions)


def test_pieces_are_bounded_and_absent_files_are_empty() -> None:
    service = DiscoverService(no_records, FILES)
    answers = asyncio.run(
        ask(
            service,
            AskFile(1, FILES.digest, "tokenizer.json", 0),
            AskFile(2, FILES.digest, "tokenizer.json", 767_999),
            AskFile(3, FILES.digest, "tokenizer.json", MAX_FILE_BYTES),
            AskFile(4, FILES.digest, "../identity", 0),
        )
    )
    assert answers[0] == FilePiece(1, 768_000, FILES.files["tokenizer.json"][:MAX_CHUNK_BYTES])
    assert answers[1:] == [
        FilePiece(2, 768_000, b"\xff"),
        FilePiece(3, 768_000, b""),
        FilePiece(4, 0, b""),
    ]


def test_pieces_are_compressed_on_request_if_that_makes_them_smaller() -> None:
    files = TokenizerFiles({"tokenizer.json": b"abc" * 200_000, "vocab.txt": b"xy"})
    starts = (0, MAX_CHUNK_BYTES, 1)
    asked = [AskFile(1, files.digest, "tokenizer.json", start, compresses=True) for start in starts]
    asked.append(AskFile(1, files.digest, "vocab.txt", 0, compresses=True))
    *compressed, odd, short = asyncio.run(ask(DiscoverService(no_records, files), *asked))
    for start, piece in zip(starts, compressed, strict=False):
        assert isinstance(piece, FilePiece) and piece.is_compressed and piece.total_bytes == 600_000
        expected = files.files["tokenizer.json"][start : start + MAX_CHUNK_BYTES]
        assert expanded(piece, most_bytes=MAX_CHUNK_BYTES) == expected
    # Unaligned pieces are not compressed, as there are millions.
    assert isinstance(odd, FilePiece) and not odd.is_compressed
    assert short == FilePiece(1, 2, b"xy")


def records_of(*records: bytes) -> Callable[[str], Awaitable[Sequence[bytes]]]:
    async def read(key: str) -> Sequence[bytes]:
        return [*records, key.encode()]

    return read


def test_records_are_verbatim_and_bounded() -> None:
    (answer,) = asyncio.run(ask(DiscoverService(records_of(b"one", b"two")), AskRecords(7, "cell")))
    assert answer == Records(7, (b"one", b"two", b"cell"))
    service = DiscoverService(records_of(bytes(5000), *[b"r"] * 100))
    (answer,) = asyncio.run(ask(service, AskRecords(7, "cell")))
    assert isinstance(answer, Records)
    assert len(answer.records) == MAX_CELL_OWNERS - 1


@in_virtual_time
async def test_cells_requested_together_are_read_concurrently_and_answered_in_order() -> None:
    async def read(key: str) -> Sequence[bytes]:
        await asyncio.sleep(1.0 if key == "first" else 0.5)
        return [key.encode()]

    network = MemoryNetwork()
    await network.join("server").serve(DISCOVER, DiscoverService(read).handle)
    async with Channel(await network.join("client").dial("server", DISCOVER), DISCOVER) as channel:
        for number, cell in enumerate(("first", "second")):
            channel.post(AskRecords(number, cell))
        assert await channel.receive() == Records(0, (b"first",))
        assert await channel.receive() == Records(1, (b"second",))
    assert asyncio.get_running_loop().time() < 1.1


async def fail(key: str) -> Sequence[bytes]:
    raise PeerLost("dht", "down")


@pytest.mark.parametrize(
    ("service", "question", "code"),
    [
        (DiscoverService(no_records, FILES), AskFile(1, b"\0" * 32, "vocab.txt", 0), ErrorCode.WRONG_TOKENIZER),
        (DiscoverService(no_records), AskFile(1, b"\0" * 32, "vocab.txt", 0), ErrorCode.WRONG_TOKENIZER),
        (DiscoverService(fail), AskRecords(1, "cell"), ErrorCode.INTERNAL),
        (DiscoverService(no_records), FilePiece(0, 0, b""), ErrorCode.MALFORMED),
    ],
    ids=["another tokenizer", "no tokenizer", "no directory", "no question"],
)
def test_what_cannot_be_answered_is_an_error(service: DiscoverService, question: Any, code: ErrorCode) -> None:
    (answer,) = asyncio.run(ask(service, question))
    assert isinstance(answer, Error)
    assert (answer.number, answer.code) == (question.number, code)


def test_whoever_asks_without_end_is_refused_and_others_are_answered() -> None:
    service = DiscoverService(records_of(b"one"), clock=lambda: 0.0)
    questions = [AskRecords(number, "cell") for number in range(int(QUESTION_BURST) + 3)]
    answers = asyncio.run(ask(service, *questions))
    assert all(isinstance(answer, Records) for answer in answers[:-3])
    refused = answers[-1]
    assert isinstance(refused, Error)
    assert (refused.code, refused.retry_after_s) == (ErrorCode.OVERLOADED, 1 / QUESTION_RATE)
    assert not service._budget.is_silenced("another", now_s=0.0)


class Dht:
    """A DHT whose look-ups take a second."""

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.held: list[bytes] = []
        self.service = DiscoverService(
            self.read, held_in=lambda cell: self.held, clock=asyncio.get_running_loop().time
        )

    async def read(self, cell: str) -> Sequence[bytes]:
        self.reads.append(cell)
        await asyncio.sleep(1.0)
        return [cell.encode()]


@in_virtual_time
async def test_those_who_ask_together_share_a_look_up_and_one_who_gives_up_takes_nothing_from_them() -> None:
    dht = Dht()
    read = dht.service.read_cell
    leaving = asyncio.ensure_future(read("a"))
    asking = [asyncio.ensure_future(read("a")) for _ in range(50)]
    await asyncio.sleep(0.5)
    leaving.cancel()
    assert await asyncio.gather(*asking, read("b")) == [[b"a"]] * 50 + [[b"b"]]
    await read("a")
    assert dht.reads == ["a", "b"]
    await asyncio.sleep(REUSE_S)
    await read("a")
    await asyncio.sleep(0)
    assert dht.reads == ["a", "b", "a"]


@in_virtual_time
async def test_the_last_look_answers_at_once_with_what_was_stored_since_while_the_next_is_under_way() -> None:
    dht, loop = Dht(), asyncio.get_running_loop()
    await dht.service.read_cell("a")
    await asyncio.sleep(ANSWERS_S - 2.0)
    dht.held = [b"a", b"newcomer"]
    began_s = loop.time()
    assert await dht.service.read_cell("a") == [b"a", b"newcomer"]
    assert loop.time() == began_s
    await asyncio.sleep(1.5)
    assert dht.reads == ["a", "a"]
    assert await dht.service.read_cell("a") == [b"a"], "the new look"
    await asyncio.sleep(ANSWERS_S)
    began_s = loop.time()
    await dht.service.read_cell("a")
    assert loop.time() - began_s == 1.0, "one that is too old does not answer"
