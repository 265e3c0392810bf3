"""Tokenizers, templates and model folders of strangers, with gateways and verifiers as processes."""

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest
from openai import APIStatusError, OpenAI

from cosine_p2p import AsyncClient
from cosine_p2p.directory.dht import DhtDirectory
from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.text.template_process import SLOW_PLACES
from cosine_p2p.text.tokenizer_files import NAMES, TokenizerFiles
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel
from cosine_protocol.errors import PeerError, PeerLost
from cosine_protocol.messages import AskFile, FilePiece
from cosine_protocol.protocols import DISCOVER
from cosine_protocol.records import NodeRecord
from tests.cosine_p2p.text.test_template_process import ENDLESS
from tests.cosine_p2p.text.test_tokenizer import word_level
from tests.cosine_p2p.transport.full_nodes import Swarm as Strangers
from tests.e2e.attacker import FASTEST, issued
from tests.e2e.emoji_model import write_model
from tests.e2e.nodes import Node, run
from tests.e2e.reference import encoded, greedy, target_tokenizer
from tests.thoroughness import soak_rest

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

NETWORK: Final = "hostile-models"
PROMPT: Final = "The old lighthouse keeper opened the door and"
TOKENS: Final = 24
LIARS: Final = 3
"""More than honest ones, so that their announced speed is the usual one and they are asked first."""
CHATTED: Final = "{% for message in messages %}{{ message.content }}{% endfor %}"
SECRET: Final = "-----BEGIN PRIVATE KEY-----"
TOKENIZERS: Final = {
    "another one": word_level(),
    "one that panics": word_level(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
}


@contextmanager
def node_of(name: str, folder: Path, *arguments: str, **environment: str) -> Iterator[Node]:
    node = Node.start(name, (*arguments, "--network", NETWORK), folder, **environment)
    try:
        yield node.wait_ready()
    finally:
        node.close()


def verifier(folder: Path, model: str) -> Any:
    """The first node of a network."""
    options = ("--role", "verifier", "--model", model, "--dtype", "float32", "--threads", "1")
    return node_of("verifier", folder, "join", *options)


@contextmanager
def gateway(folder: Path, peer: Node, *target: str) -> Iterator[tuple[Node, OpenAI]]:
    """A gateway that has no tokenizer yet."""
    place = ("serve", "--port", "0", "--initial-peers", peer.maddr, *target)
    with (
        node_of("gateway", folder, *place, XDG_CACHE_HOME=str(folder / "cache")) as node,
        OpenAI(base_url=f"{node.ready['url']}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        yield node, client


def health_of(node: Node) -> str:
    with urlopen(f"{node.ready['url']}/health", timeout=5) as answer:
        return str(json.load(answer)["status"])


def serving(files: TokenizerFiles, asked: list[str]) -> Any:
    """Says of these files that they are the ones asked for."""

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
    async with AsyncClient([peer.maddr], network=NETWORK, dtype="float32") as client:
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
        with gateway(tmp_path, peer) as (node, client):
            began_s = time.perf_counter()
            options: dict[str, Any] = {"model": "cosine", "max_tokens": TOKENS, "temperature": 0}
            text = client.completions.create(prompt=PROMPT, **options).choices[0].text
            assert time.perf_counter() - began_s < 60
            return text, health_of(node)

    with verifier(tmp_path, "zoo:target") as peer:
        text, health = asyncio.run(attacked(peer))
    before = encoded(PROMPT)
    whole = target_tokenizer().decode([*before, *greedy(before, TOKENS)])
    assert text == whole.removeprefix(target_tokenizer().decode(list(before)))
    assert asked and health == "ok"


ENDLESS_CHATS = 1 + SLOW_PLACES


def test_a_template_without_an_end_costs_its_own_chat_only(tmp_path: Path) -> None:
    """The target's other chats and the gateway's health are as before, meanwhile and afterwards."""
    model = write_model(tmp_path / "model")
    endless = "{% if messages[0].content == 'endless' %}" + ENDLESS + "{% endif %}"
    (model / "chat_template.jinja").write_text(endless + CHATTED)
    asked: dict[str, Any] = {"model": "cosine", "max_tokens": TOKENS, "temperature": 0}
    with verifier(tmp_path, str(model)) as peer, gateway(tmp_path, peer, "--target", str(model)) as (node, client):

        def chat(text: str) -> str | None:
            messages: list[Any] = [{"role": "user", "content": text}]
            done: str | None = client.chat.completions.create(messages=messages, **asked).choices[0].message.content
            return done

        quiet = chat("ok ok")
        with ThreadPoolExecutor(ENDLESS_CHATS) as beside:
            hanging = [beside.submit(chat, "endless") for _ in range(ENDLESS_CHATS)]
            meanwhile = 0
            while not all(each.done() for each in hanging):
                assert health_of(node) == "ok"
                meanwhile += client.completions.create(prompt="ok ok", **asked).choices[0].text == quiet
                assert chat("ok ok") == quiet
            for each in hanging:
                with pytest.raises(APIStatusError, match="too long"):
                    each.result()
        assert meanwhile and chat("ok ok") == quiet and health_of(node) == "ok"


def test_a_link_out_of_a_model_folder_is_not_served_to_strangers(tmp_path: Path) -> None:
    """Neither one that was there when the node started, which it refuses to, nor one put there later."""
    (tmp_path / "key").write_text(SECRET)
    model = write_model(tmp_path / "model")
    (model / "vocab.txt").symlink_to(tmp_path / "key")
    place = ("--network", NETWORK, "--host-maddr", "/ip4/127.0.0.1/tcp/0")
    refused = run("join", "--role", "verifier", "--model", str(model), *place)
    assert refused.returncode != 0 and "is a link to" in refused.stderr and SECRET not in refused.stderr
    (model / "vocab.txt").unlink()

    files = TokenizerFiles.read(model)
    assert files is not None
    digest = files.digest

    async def files_of(peer: Node) -> dict[str, bytes]:
        async with AsyncClient([peer.maddr], network=NETWORK, dtype="float32") as client:
            stream = await client._joined().swarm.transport.dial(peer.peer_id, DISCOVER)
            got: dict[str, bytes] = {}
            async with Channel(stream, DISCOVER) as channel:
                for number, name in enumerate([*NAMES, "key", "../key", str(tmp_path / "key")]):
                    channel.post(AskFile(number, digest, name, 0))
                    try:
                        answer = await channel.receive()
                    except (PeerError, PeerLost):
                        break
                    got[name] = answer.data if isinstance(answer, FilePiece) else b""
            return got

    with verifier(tmp_path, str(model)) as peer:
        (model / "vocab.txt").symlink_to(tmp_path / "key")
        got = asyncio.run(files_of(peer))
    assert got["tokenizer.json"] and not [name for name, data in got.items() if SECRET.encode() in data]
    assert got["vocab.txt"] == b""
