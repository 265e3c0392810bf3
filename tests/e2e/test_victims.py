"""Records with a victim's addresses cause few connections, counted at the victim's sockets.

The test runs this file as a command in a separate network, which needs root or user namespaces. Swarm and victim
have public addresses there, the victim also a private one and the loopback. It counts connections and sends
nothing.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_p2p import AsyncClient
from cosine_p2p.dht.cells import DhtDirectory
from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.transport.addresses import MAX_TRIES, TRIES_WINDOW_S
from cosine_protocol.records import NodeRecord, Role
from tests.cosine_p2p.transport.full_nodes import Swarm as Strangers
from tests.e2e.attacker import issued
from tests.e2e.nodes import Node, own_home, starting
from tests.e2e.reference import PROMPT, encoded, greedy

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]

NETWORK: Final = "victims"
TOKENS: Final = 24
TEXTS: Final = 3
STRANGERS: Final = 6
NODES: Final = 3
SWARM: Final = "93.184.216.50"
VICTIMS: Final = {"public": "93.184.216.34", "private": "10.9.9.9", "loopback": "127.0.0.1"}
PORTS: Final = {"public": 8, "private": 4, "loopback": 4}
"""Addresses of each kind in a record, which may hold 16."""
FASTEST: Final[dict[str, Any]] = {"pass_us": 1, "load_requests": 0, "capacity_requests": 1000, "lifetime_s": 120.0}


def command() -> list[str] | None:
    """Return the command of this script in a separate network, or None if that is not possible."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return None
    enter = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*enter, "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode:
        return None
    hosts = [SWARM, *VICTIMS.values()]
    addresses = "; ".join(f"ip address add {host}/32 dev lo" for host in hosts if not host.startswith("127."))
    inside = f"ip link set lo up; {addresses}; exec '{sys.executable}' -m tests.e2e.test_victims"
    return [*enter, "sh", "-c", inside]


class Victim:
    """A server that counts connections by kind of address and never answers."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.maddrs: list[str] = []

    async def listen(self, stack: AsyncExitStack) -> None:
        for kind, host in VICTIMS.items():
            for _ in range(PORTS[kind]):
                server = await asyncio.start_server(partial(self._keep, kind), host)
                stack.callback(server.close)
                self.maddrs.append(f"/ip4/{host}/tcp/{server.sockets[0].getsockname()[1]}")

    async def _keep(self, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls[kind] += 1
        await reader.read()
        writer.close()


async def announce(boot: Node, victim: Victim, stack: AsyncExitStack, folder: Path) -> None:
    """Announce a verifier and a drafter of each stranger with the victim's addresses."""
    async with client_of(boot, "full") as client:
        directory = client.swarm.directory
        true = [(await directory.find(role, "zoo:target"))[0] for role in (Role.VERIFIER, Role.DRAFTER)]
    strangers = Strangers(folder, stack)
    strangers.boot = (boot.maddr,)
    for _ in range(STRANGERS):
        node = await strangers.node(network=NETWORK, host_maddrs=(f"/ip4/{SWARM}/tcp/0",))
        identity = load_identity(node.config.identity_file)
        addresses = tuple(f"{maddr}/p2p/{identity.peer_id}" for maddr in victim.maddrs)
        for record in true:
            lie: NodeRecord = replace(record, peer_id=identity.peer_id, addresses=addresses, **FASTEST)
            own = DhtDirectory(node, identity, network=NETWORK, opener=node.opener)
            await own.announce(issued(lie), ["zoo:target"])
        # Its records remain.
        await node.close()


def client_of(boot: Node, transport: str) -> AsyncClient:
    return AsyncClient([boot.maddr], memory=False, network=NETWORK, dtype="float32", audit=0.0, transport=transport)


async def texts_of(boot: Node, victim: Victim, transport: str) -> dict[str, object]:
    victim.calls.clear()
    right, began_s = 0, time.monotonic()
    async with client_of(boot, transport) as client:
        for _ in range(TEXTS):
            done = await client.generate(PROMPT, max_new_tokens=TOKENS)
            right += done.token_ids == greedy(encoded(PROMPT), TOKENS)
    windows = 1 + int((time.monotonic() - began_s) / TRIES_WINDOW_S)
    return {"transport": transport, "right": right, "dials": dict(victim.calls), "windows": windows}


async def measure(boot: Node, folder: Path) -> list[dict[str, object]]:
    async with AsyncExitStack() as stack:
        victim = Victim()
        await victim.listen(stack)
        quiet = await texts_of(boot, victim, "light")
        await announce(boot, victim, stack, folder)
        return [quiet, *[await texts_of(boot, victim, transport) for transport in ("light", "full")]]


def main() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    with (
        tempfile.TemporaryDirectory() as name,
        own_home(Path(name)),
        starting(Path(name), host=f"/ip4/{SWARM}/tcp/0") as start,
    ):
        boot = start("boot", "bootstrap", "--network", NETWORK).wait_ready()
        join = ("join", "--threads", "1", "--network", NETWORK, "--initial-peers", boot.maddr)
        nodes = [
            start(role, *join, "--dtype", "float32", "--role", role, "--model", model)
            for role, model in (("verifier", "zoo:target"), ("drafter", "zoo:draft-literature"))
        ]
        for node in nodes:
            node.wait_ready()
        print(json.dumps(asyncio.run(measure(boot, Path(name)))))  # noqa: T201  # for the test


@pytest.mark.soak
def test_a_victim_is_dialled_a_few_times_and_never_at_private_addresses() -> None:
    inside = command()
    if inside is None:
        pytest.skip("a network of its own needs unshare, ip and the right to use them")
    done = subprocess.run(inside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    quiet, light, full = json.loads(done.stdout)
    assert [each["right"] for each in (quiet, light, full)] == [TEXTS] * 3
    assert quiet["dials"] == {}
    for each in (light, full):
        # By the client and by each of the swarm's nodes, which look around as well.
        assert 0 < each["dials"]["public"] <= MAX_TRIES * (1 + NODES) * each["windows"], each
        assert each["dials"].keys() == {"public"}, each


if __name__ == "__main__":
    main()
