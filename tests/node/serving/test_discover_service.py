"""Records of the directory and tokenizer files, for those who take no part in the DHT; each cell looked up once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.serving.discover_service import (
    MAX_CELLS,
    QUESTION_BURST,
    QUESTION_RATE,
    REUSE_S,
    DiscoverService,
    RecentCells,
)
from cosine_p2p.text.tokenizer_files import TokenizerCache, TokenizerFiles, fetch_tokenizer_files
from cosine_p2p.transport.channel import Channel
from cosine_protocol import limits
from cosine_protocol import messages as m
from cosine_protocol.errors import ErrorCode, PeerLost
from cosine_protocol.messages import AskFile, FilePiece
from cosine_protocol.protocols import DISCOVER

FILES = TokenizerFiles({"tokenizer.json": bytes(range(256)) * 3000, "vocab.txt": b"a"})


async def no_records(key: str) -> Sequence[bytes]:
    return ()


async def ask(service: DiscoverService, *questions: m.Message) -> list[m.Message]:
    network = MemoryNetwork()
    server, client = network.join("server"), network.join("client")
    await server.serve(DISCOVER, service.handle)
    answers = []
    async with Channel(await client.dial("server", DISCOVER), DISCOVER) as channel:
        for question in questions:
            channel.post(question)
            answers.append(await channel.receive())
    await client.close()
    await server.close()
    return answers


def test_files_travel_from_service_to_client(tmp_path: Path) -> None:
    async def run() -> TokenizerFiles:
        network = MemoryNetwork()
        server, client = network.join("server"), network.join("client")
        await server.serve(DISCOVER, DiscoverService(no_records, FILES).handle)
        fetched = await fetch_tokenizer_files(client, "server", FILES.digest, cache=TokenizerCache(tmp_path))
        await client.close()
        await server.close()
        return fetched

    assert asyncio.run(run()).files == FILES.files


def test_pieces_are_bounded_and_absent_files_are_empty() -> None:
    service = DiscoverService(no_records, FILES)
    answers = asyncio.run(
        ask(
            service,
            AskFile(1, FILES.digest, "tokenizer.json", 0),
            AskFile(2, FILES.digest, "tokenizer.json", 767_999),
            AskFile(3, FILES.digest, "tokenizer.json", limits.MAX_FILE_BYTES),
            AskFile(4, FILES.digest, "../identity", 0),
        )
    )
    assert answers[0] == FilePiece(1, 768_000, FILES.files["tokenizer.json"][: limits.MAX_CHUNK_BYTES])
    assert answers[1:] == [
        FilePiece(2, 768_000, b"\xff"),
        FilePiece(3, 768_000, b""),
        FilePiece(4, 0, b""),
    ]


def test_another_digest_is_refused() -> None:
    for service in (DiscoverService(no_records, FILES), DiscoverService(no_records)):
        (answer,) = asyncio.run(ask(service, AskFile(1, b"\0" * 32, "tokenizer.json", 0)))
        assert isinstance(answer, m.Error)
        assert (answer.number, answer.code) == (1, ErrorCode.WRONG_TOKENIZER)


def records_of(*records: bytes) -> Callable[[str], Awaitable[Sequence[bytes]]]:
    async def read(key: str) -> Sequence[bytes]:
        return [*records, key.encode()]

    return read


def test_records_come_verbatim() -> None:
    (answer,) = asyncio.run(ask(DiscoverService(records_of(b"one", b"two")), m.AskRecords(7, "cell")))
    assert answer == m.Records(7, (b"one", b"two", b"cell"))


def test_more_records_than_allowed_are_cut() -> None:
    service = DiscoverService(records_of(bytes(5000), *[b"r"] * 100))
    (answer,) = asyncio.run(ask(service, m.AskRecords(7, "cell")))
    assert isinstance(answer, m.Records)
    assert len(answer.records) == limits.MAX_CELL_OWNERS - 1


def test_a_directory_that_fails_is_an_error() -> None:
    async def fail(key: str) -> Sequence[bytes]:
        raise PeerLost("dht", "down")

    (answer,) = asyncio.run(ask(DiscoverService(fail), m.AskRecords(7, "cell")))
    assert isinstance(answer, m.Error)
    assert (answer.number, answer.code) == (7, ErrorCode.INTERNAL)


def test_whoever_asks_without_end_is_refused_and_others_are_answered() -> None:
    service = DiscoverService(records_of(b"one"), clock=lambda: 0.0)
    questions = [m.AskRecords(number, "cell") for number in range(int(QUESTION_BURST) + 3)]
    answers = asyncio.run(ask(service, *questions))
    assert all(isinstance(answer, m.Records) for answer in answers[:-3])
    refused = answers[-1]
    assert isinstance(refused, m.Error)
    assert (refused.code, refused.retry_after_s) == (ErrorCode.OVERLOADED, 1 / QUESTION_RATE)
    assert not service._budget.is_silenced("another", now_s=0.0)


def test_what_is_no_question_ends_the_stream() -> None:
    (answer,) = asyncio.run(ask(DiscoverService(no_records), FilePiece(1, 0, b"")))
    assert isinstance(answer, m.Error)
    assert (answer.number, answer.code) == (0, ErrorCode.MALFORMED)


class Dht:
    """Takes a second for each look-up."""

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.is_down = False

    async def read(self, cell: str) -> Sequence[bytes]:
        self.reads.append(cell)
        await asyncio.sleep(1.0)
        if self.is_down:
            raise PeerLost("dht", "down")
        return [cell.encode()]


def test_those_who_ask_together_share_a_look_up() -> None:
    async def run() -> None:
        dht = Dht()
        cells = RecentCells(dht.read, asyncio.get_running_loop().time)
        answers = await asyncio.gather(*(cells("a") for _ in range(50)), cells("b"))
        assert answers == [[b"a"]] * 50 + [[b"b"]]
        assert dht.reads == ["a", "b"]
        await cells("a")
        assert dht.reads == ["a", "b"]
        await asyncio.sleep(REUSE_S)
        await cells("a")
        assert dht.reads == ["a", "b", "a"]

    run_virtual(run())


def test_one_who_gives_up_takes_nothing_from_the_others() -> None:
    async def run() -> None:
        dht = Dht()
        cells = RecentCells(dht.read, asyncio.get_running_loop().time)
        first, second = asyncio.ensure_future(cells("a")), asyncio.ensure_future(cells("a"))
        await asyncio.sleep(0.5)
        first.cancel()
        assert await second == [b"a"]
        assert dht.reads == ["a"]

    run_virtual(run())


def test_a_failure_is_not_kept() -> None:
    async def run() -> None:
        dht = Dht()
        dht.is_down = True
        cells = RecentCells(dht.read, asyncio.get_running_loop().time)
        with pytest.raises(PeerLost):
            await cells("a")
        dht.is_down = False
        assert await cells("a") == [b"a"]

    run_virtual(run())


def test_what_is_kept_is_bounded() -> None:
    async def run() -> None:
        cells = RecentCells(Dht().read, asyncio.get_running_loop().time)
        await asyncio.gather(*(cells(f"{number}") for number in range(MAX_CELLS + 9)))
        assert len(cells._reads) == MAX_CELLS

    run_virtual(run())
