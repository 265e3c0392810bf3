"""Attacks on real nodes by another process: honest texts stay right, and memory stays bounded."""

import asyncio
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from cosine_p2p import AsyncClient
from cosine_p2p.dht.cells import DhtDirectory
from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel, serve_channel
from cosine_protocol.codec import Message
from cosine_protocol.discover import DISCOVER
from cosine_protocol.errors import ErrorCode
from cosine_protocol.stream import Error
from cosine_protocol.verify import VERIFY
from tests.cosine_p2p.transport.full_nodes import Swarm as Strangers
from tests.e2e.attacker import KINDS
from tests.e2e.conftest import Swarm
from tests.e2e.nodes import COMMAND
from tests.e2e.reference import PROMPT, encoded, greedy
from tests.thoroughness import soak_rest

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

NEW_TOKENS = 24
END_S = 30.0
MOST_BYTES = 256 << 20
ELSEWHERE = ("nice", "-n", "10")
"""A stranger would have its own machine, so here it yields to the nodes."""
NETWORK = "refusals"
ESCAPES = "\x1b]52;c;aGk=\x07 \x1b[31;1;5m \x9b1A"


@contextmanager
def attacking(swarm: Swarm, kind: str) -> Iterator[None]:
    """Run an attacking process, which must end without an error."""
    task = {
        "do": kind,
        "boot": swarm.boot.maddr,
        "target": swarm.target,
        "dtype": swarm.dtype,
        "peer_ids": [swarm.boot.peer_id, swarm.verifier.peer_id],
        "prompt": PROMPT,
    }
    command = (*ELSEWHERE, sys.executable, "-m", "tests.e2e.attacker", json.dumps(task))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdout is not None
        try:
            assert attacker.stdout.readline() == "attacking\n"
            yield
            attacker.communicate("", timeout=END_S)
        finally:
            attacker.kill()
    assert attacker.returncode == 0


def client_of(swarm: Swarm) -> AsyncClient:
    return AsyncClient([swarm.boot.maddr], memory=False, target=swarm.target, dtype=swarm.dtype, audit=0)


async def assert_right(client: AsyncClient) -> None:
    generation = await client.generate(PROMPT, max_new_tokens=NEW_TOKENS)
    assert generation.token_ids == greedy(encoded(PROMPT), NEW_TOKENS)


def memory_bytes(swarm: Swarm) -> int:
    process = psutil.Process(swarm.verifier.process.pid)
    return sum(each.memory_info().rss for each in (process, *process.children()))


@pytest.mark.parametrize("kind", soak_rest(KINDS))
def test_texts_are_the_targets_while_the_swarm_is_attacked_and_after(swarm: Swarm, kind: str) -> None:
    async def ask() -> None:
        async with client_of(swarm) as client:
            await assert_right(client)
            before = memory_bytes(swarm)
            with attacking(swarm, kind):
                await assert_right(client)
                # Also for a new client.
                async with client_of(swarm) as newcomer:
                    await assert_right(newcomer)
            await assert_right(client)
            assert memory_bytes(swarm) - before < MOST_BYTES

    asyncio.run(ask())


def test_what_a_verifier_says_when_it_refuses_steers_no_terminal(swarm: Swarm, tmp_path: Path) -> None:
    """Control sequences for clipboard and cursor are removed; the sentence is shown."""

    def refuse(channel: Channel, message: Message) -> None:
        number = getattr(message, "number", 0)
        channel.post(Error(number, ErrorCode.OVERLOADED, f"never {ESCAPES} mind", None))

    async def refuse_all(protocol: str, stream: Stream) -> None:
        await serve_channel(stream, protocol, refuse)

    async def on_terminal() -> bytes:
        async with client_of(swarm) as client, AsyncExitStack() as stack:
            [true] = await client.find_verifiers()
            node = await Strangers(tmp_path, stack).node(network=NETWORK)
            for protocol in (DISCOVER, VERIFY):
                await node.serve(protocol, partial(refuse_all, protocol))
            directory = DhtDirectory(node, load_identity(node.config.identity_file), network=NETWORK)
            record = replace(true, peer_id=node.peer_id, sequence=true.sequence + 1)
            await directory.announce(record, [record.target])
            [address, *_] = await node.visible_maddrs()
            place = ("--network", NETWORK, "--initial-peers", address)
            return await asyncio.to_thread(shown_of, (*COMMAND, "generate", PROMPT, *place))

    shown = asyncio.run(on_terminal())
    assert b"never" in shown and b"mind" in shown
    assert not [sequence for sequence in ESCAPES.split() if sequence.encode() in shown]


def shown_of(command: Sequence[str]) -> bytes:
    ours, its = pty.openpty()
    with subprocess.Popen(command, stdout=its, stderr=its, env=os.environ | {"COSINE_TRANSPORT": "full"}):
        os.close(its)
        shown = b""
        try:
            while piece := os.read(ours, 65_536):
                shown += piece
        except OSError:
            # Linux raises this when nobody has the terminal open.
            pass
        finally:
            os.close(ours)
    return shown
