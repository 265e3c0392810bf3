"""Tokenizers of strangers under an honest digest, with a gateway and a verifier as processes."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest
from openai import OpenAI

from cosine_p2p import AsyncClient
from cosine_p2p.dht.cells import DhtDirectory
from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel
from cosine_protocol.discover import DISCOVER, AskFile, FilePiece
from cosine_protocol.errors import PeerLost
from cosine_protocol.records import NodeRecord
from tests.cosine_p2p.text.test_tokenizer import word_level
from tests.cosine_p2p.transport.full_nodes import Swarm as Strangers
from tests.e2e.attacker import FASTEST, issued
from tests.e2e.nodes import Node
from tests.e2e.reference import PROMPT, own_text
from tests.thoroughness import soak_rest

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

NETWORK: Final = "hostile-models"
TOKENS: Final = 24
LIARS: Final = 3
"""More than honest ones, so that they determine the usual speed and are asked first."""
TOKENIZERS: Final = {
    "another one": word_level(),
    "one that panics": word_level(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
}


@contextmanager
def node_of(name: str, folder: Path, *arguments: str, **environment: str) -> Iterator[Node]:
    with closing(Node.start(name, (*arguments, "--network", NETWORK), folder, **environment)) as node:
        yield node.wait_ready()


def serving(files: TokenizerFiles, asked: list[str]) -> Any:

    async def handle(stream: Stream) -> None:
        async with Channel(stream, DISCOVER) as channel:
            try:
                while isinstance(question := await channel.receive(), AskFile):
                    asked.append(question.name)
                    data = files.files.get(question.name, b"")
                    channel.post(FilePiece(question.number, len(data), data[question.offset :]))
            except PeerLost:
                return

    return handle


async def record_of(peer: Node) -> NodeRecord:
    async with AsyncClient([peer.maddr], memory=False, network=NETWORK, dtype="float32") as client:
        return (await client.find_verifiers())[0]


@pytest.mark.parametrize("kind", soak_rest(TOKENIZERS))
def test_a_tokenizer_of_ones_own_under_the_honest_digest_is_not_taken(kind: str, tmp_path: Path) -> None:
    asked: list[str] = []

    async def attacked(peer: Node) -> tuple[str, str]:
        true = await record_of(peer)
        async with AsyncExitStack() as stack:
            strangers = Strangers(tmp_path, stack)
            strangers.boot = (peer.maddr,)
            for _ in range(LIARS):
                node = await strangers.node(network=NETWORK)
                await node.serve(DISCOVER, serving(TokenizerFiles({"tokenizer.json": TOKENIZERS[kind]}), asked))
                identity = load_identity(node.config.identity_file)
                own = DhtDirectory(node, identity, network=NETWORK, opener=node.opener)
                addresses = await node.visible_maddrs()
                lie = replace(true, peer_id=identity.peer_id, addresses=addresses, **FASTEST)
                await own.announce(issued(lie), [true.target])
            return await asyncio.to_thread(asks, peer)

    def asks(peer: Node) -> tuple[str, str]:
        """The text of a gateway without a tokenizer, and its health afterwards."""
        place = ("serve", "--port", "0", "--initial-peers", peer.maddr)
        with node_of("gateway", tmp_path, *place, XDG_CACHE_HOME=str(tmp_path / "cache")) as node:
            url: str = node.ready["url"]
            with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client:
                options: dict[str, Any] = {"model": "cosine", "max_tokens": TOKENS, "temperature": 0}
                text = client.completions.create(prompt=PROMPT, **options).choices[0].text
            with urlopen(f"{url}/health", timeout=5) as answer:
                return text, str(json.load(answer)["status"])

    join = ("join", "--role", "verifier", "--model", "zoo:target", "--dtype", "float32", "--threads", "1")
    with node_of("verifier", tmp_path, *join) as peer:
        text, health = asyncio.run(attacked(peer))
    assert text == own_text(TOKENS)
    assert asked and health == "ok"
