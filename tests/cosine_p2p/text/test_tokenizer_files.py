"""Tests of tokenizer files: digest, cache, and download."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_p2p.text.tokenizer_files import (
    ANSWER_TIMEOUT_S,
    FETCH_S,
    MAX_ASKED_PIECES,
    MAX_TEMPLATES,
    NAMES,
    TEMPLATE_FOLDER,
    TokenizerCache,
    TokenizerFiles,
    fetch_tokenizer_files,
)
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel
from cosine_protocol.codec import Message
from cosine_protocol.discover import DISCOVER, AskFile, FilePiece, Records
from cosine_protocol.errors import PeerError, PeerLost, RemoteProtocolError, UsageError
from cosine_protocol.fields import MAX_CHUNK_BYTES, MAX_FILE_BYTES
from cosine_protocol.stream import Error
from tests.scenes import in_real_time, in_virtual_time

FILES = TokenizerFiles({"tokenizer.json": b"{}", "special_tokens_map.json": b"[]"})
BIG = TokenizerFiles({"tokenizer.json": bytes(range(256)) * 3000})

Answer = Callable[[AskFile], Message]


@in_real_time
async def fetch(answer: Answer, digest: bytes) -> TokenizerFiles:
    network = MemoryNetwork()
    server, client = network.join("server"), network.join("client")
    await server.serve(DISCOVER, serving_stream(answer))
    try:
        return await fetch_tokenizer_files(client, "server", digest)
    finally:
        await client.close()
        await server.close()


def serving_stream(answer: Answer) -> Callable[[Stream], Awaitable[None]]:
    async def serve(stream: Stream) -> None:
        async with Channel(stream, DISCOVER) as channel:
            try:
                while isinstance(question := await channel.receive(), AskFile):
                    channel.post(answer(question))
            except PeerLost:
                return

    return serve


def serving(files: TokenizerFiles) -> Answer:
    def answer(question: AskFile) -> Message:
        data = files.answer(question.name)
        piece = data[question.offset : question.offset + MAX_CHUNK_BYTES]
        return FilePiece(question.number, len(data), piece)

    return answer


def compressing(files: TokenizerFiles) -> Answer:
    def answer(question: AskFile) -> Message:
        assert question.compresses
        piece = serving(files)(question)
        assert isinstance(piece, FilePiece)
        return replace(piece, data=zlib.compress(piece.data), is_compressed=True)

    return answer


def test_pieces_may_come_compressed_and_what_expands_to_more_is_refused() -> None:
    for files in (FILES, BIG):
        assert fetch(compressing(files), files.digest).files == files.files

    swollen = zlib.compress(bytes(1 << 27))

    def swelling(question: AskFile) -> Message:
        return FilePiece(question.number, 10, swollen, is_compressed=True)

    for wrong in (
        swelling,
        lambda question: FilePiece(question.number, 10, zlib.compress(bytes(10)) + b"x", is_compressed=True),
        lambda question: FilePiece(question.number, 10, zlib.compress(bytes(10))[:-1], is_compressed=True),
    ):
        with pytest.raises(RemoteProtocolError, match="do not fit"):
            fetch(wrong, FILES.digest)


def test_files_arrive_whole_and_others_are_refused() -> None:
    for files in (FILES, BIG):
        assert fetch(serving(files), files.digest).files == files.files
    with pytest.raises(RemoteProtocolError, match="do not match"):
        fetch(serving(BIG), FILES.digest)
    with pytest.raises(PeerError, match="not here"):
        fetch(lambda question: Error(question.number, 4, "not here", None), FILES.digest)


@pytest.mark.parametrize(
    "listing",
    [
        b"../../evil.jinja",
        b"additional_chat_templates/../evil.jinja",
        b"tokenizer.json",
        b"\n".join(b"additional_chat_templates/%d.jinja" % number for number in range(MAX_TEMPLATES + 1)),
    ],
)
def test_no_other_names_are_taken_for_chat_templates(listing: bytes) -> None:
    def answer(question: AskFile) -> Message:
        data = listing if question.name == TEMPLATE_FOLDER else b""
        return FilePiece(question.number, len(data), data)

    with pytest.raises(RemoteProtocolError, match="names of chat templates"):
        fetch(answer, FILES.digest)


@pytest.mark.parametrize(
    "answer",
    [
        lambda question: FilePiece(question.number, 10, b""),
        lambda question: FilePiece(question.number, 2, b"123"),
        lambda question: FilePiece(question.number + 1, 0, b""),
        lambda question: FilePiece(question.number, (512 << 10) + question.offset, b"x" * (256 << 10)),
        lambda question: Records(question.number, ()),
    ],
)  # fmt: skip
def test_pieces_that_do_not_fit_are_refused(answer: Answer) -> None:
    with pytest.raises(RemoteProtocolError):
        fetch(answer, FILES.digest)


def test_all_files_together_are_bounded() -> None:
    asked: list[str] = []

    def answer(question: AskFile) -> Message:
        asked.append(question.name)
        size = MAX_FILE_BYTES if question.name != NAMES[0] else 1
        return FilePiece(question.number, size, bytes(min(size, MAX_CHUNK_BYTES)))

    with pytest.raises(RemoteProtocolError, match="more tokenizer files than allowed"):
        fetch(answer, FILES.digest)
    assert len(asked) <= MAX_ASKED_PIECES


@in_virtual_time
async def test_a_peer_that_sends_drop_by_drop_is_given_up() -> None:
    network = MemoryNetwork()
    server, client = network.join("server"), network.join("client")

    async def serve(stream: Stream) -> None:
        async with Channel(stream, DISCOVER) as channel:
            while isinstance(question := await channel.receive(), AskFile):
                await asyncio.sleep(0.9 * ANSWER_TIMEOUT_S)
                channel.post(serving(FILES)(question))

    await server.serve(DISCOVER, serve)
    with pytest.raises(PeerLost):
        await fetch_tokenizer_files(client, "server", FILES.digest)
    assert asyncio.get_running_loop().time() < FETCH_S + 1.0
    await client.close()
    await server.close()


def test_a_damaged_cache_entry_is_replaced(tmp_path: Path) -> None:
    cache = TokenizerCache(tmp_path)
    folder = cache.put(FILES)
    (folder / "tokenizer.json").write_bytes(b"tampered")
    assert cache.get(FILES.digest) is None
    cache.put(FILES)
    assert cache.get(FILES.digest) == FILES
    cache.put(FILES)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"private")
    folder = tmp_path / "model"
    FILES.write(folder)
    (folder / "vocab.txt").symlink_to("../key")
    with pytest.raises(UsageError, match=r"vocab\.txt .* is a link to .*key"):
        TokenizerFiles.read(folder)
    (folder / "vocab.txt").unlink()
    (folder / "vocab.txt").symlink_to("tokenizer.json")
    (tmp_path / "linked").symlink_to(folder)
    read = TokenizerFiles.read(tmp_path / "linked")
    assert read is not None and read.files["vocab.txt"] == FILES.files["tokenizer.json"]


def test_links_of_a_downloaded_snapshot_lead_to_its_blobs_only(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a" / "snapshots" / "1234", tmp_path / "models--a" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "abcd").write_bytes(b"{}")
    (snapshot / "tokenizer.json").symlink_to("../../blobs/abcd")
    read = TokenizerFiles.read(snapshot)
    assert read is not None and read.files == {"tokenizer.json": b"{}"}
    (tmp_path / "key").write_bytes(b"private")
    (blobs / "efgh").symlink_to(tmp_path / "key")
    (snapshot / "vocab.txt").symlink_to("../../blobs/efgh")
    with pytest.raises(UsageError, match="link"):
        TokenizerFiles.read(snapshot)
