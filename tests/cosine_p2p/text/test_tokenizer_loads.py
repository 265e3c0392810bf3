"""Tests of loading the tokenizer of a client's target."""

import asyncio
import json
from pathlib import Path

import pytest

from cosine_lab.emulation.memory_transport import MemoryNetwork, MemoryTransport
from cosine_node.serving.discover_service import DiscoverService
from cosine_p2p.text.tokenizer_files import TokenizerCache, TokenizerFiles
from cosine_p2p.text.tokenizer_loads import TokenizerLoads
from cosine_p2p.transport.base import Stream
from cosine_protocol.discover import DISCOVER
from cosine_protocol.errors import UsageError
from tests.cosine_p2p.samples import identity_of, record_of
from tests.scenes import in_real_time

TOKENIZER = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}}
FILES = TokenizerFiles({"tokenizer.json": json.dumps(TOKENIZER).encode()})
OTHER = TokenizerFiles({"tokenizer.json": json.dumps(TOKENIZER | {"padding": None}).encode()})


class Scene:
    """A client, and verifiers that serve tokenizer files and count how often they are asked."""

    def __init__(self, tmp_path: Path) -> None:
        self.network = MemoryNetwork()
        self.client = self.network.join("client")
        self.cache = TokenizerCache(tmp_path)
        self.asked: list[int] = []
        self.nodes: list[MemoryTransport] = []

    async def verifier(self, number: int, files: TokenizerFiles = FILES) -> None:
        async def no_records(cell: str) -> tuple[bytes, ...]:
            return ()

        async def serve(stream: Stream) -> None:
            self.asked.append(number)
            await DiscoverService(no_records, files).handle(stream)

        node = self.network.join(identity_of(number).peer_id)
        await node.serve(DISCOVER, serve)
        self.nodes.append(node)

    async def close(self) -> None:
        for each in (self.client, *self.nodes):
            await each.close()


RECORDS = [record_of(identity_of(n), now_s=0.0, tokenizer_digest=FILES.digest) for n in (1, 2)]


@in_real_time
async def test_what_was_begun_is_what_is_asked_for_and_comes_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.verifier(1)
    await scene.verifier(2)
    loads = TokenizerLoads(None, cache=scene.cache)
    for record in reversed(RECORDS):
        loads.begin(record.tokenizer_digest, transport=scene.client, peer_id=record.peer_id)
    first, second = await asyncio.gather(*(loads.of(RECORDS, scene.client) for _ in range(2)))
    assert first is second
    assert scene.asked == [2]
    await loads.close()
    again = TokenizerLoads(None, cache=scene.cache)
    again.begin(FILES.digest)
    assert (await again.of(RECORDS, scene.client)).vocab_tokens == 2
    assert scene.asked == [2], "the second run has it"
    await again.close()
    await scene.close()


@in_real_time
async def test_a_folder_holds_what_the_verifiers_announce_or_the_user_is_told(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    folder = tmp_path / "model"
    with pytest.raises(UsageError, match="holds no tokenizer"):
        await TokenizerLoads(tmp_path, cache=scene.cache).of(RECORDS, scene.client)
    FILES.write(folder)
    assert (await TokenizerLoads(folder, cache=scene.cache).of(RECORDS, scene.client)).vocab_tokens == 2
    other = [record_of(identity_of(1), now_s=0.0, tokenizer_digest=OTHER.digest)]
    with pytest.raises(UsageError, match="is not the one the verifiers of this target announce"):
        await TokenizerLoads(folder, cache=scene.cache).of(other, scene.client)
    assert scene.asked == []
    await scene.close()
