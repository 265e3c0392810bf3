"""A private swarm of processes: members generate, and a stranger or a member that expired gets nothing."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest

from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.transport.channel import Channel
from cosine_p2p.transport.light.light import LightConfig, LightTransport
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_p2p.trust.founded_swarm import FoundedSwarm
from cosine_p2p.trust.membership import Membership, read_swarm_file
from cosine_protocol import messages as m
from cosine_protocol.errors import ErrorCode, PeerLost
from cosine_protocol.protocols import AUDIT, DISCOVER, STATUS, VERIFY
from tests.e2e.nodes import READY_TIMEOUT_S, Node, free_port, run
from tests.e2e.reference import encoded, greedy

pytestmark = [
    pytest.mark.network,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("libp2p") is None, reason="needs py-libp2p"),
]

PROMPT: Final = "The old lighthouse keeper opened the door and"
NEW_TOKENS: Final = 24
DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Friends:
    """A swarm of a verifier, a founder's folder, and swarm files of members by the names of their keys."""

    verifier: Node
    founder: Path

    def admit(self, name: str, *, now_s: float | None = None) -> Path:
        """The swarm file of a new member, for a day from now; its key lies beside it."""
        file, peer_id = self.founder.parent / f"{name}.swarm", load_identity(self.key(name)).peer_id
        now_s = time.time() if now_s is None else now_s
        line = FoundedSwarm.open(self.founder).admit(peer_id, lifetime_s=DAY_S, now_s=now_s)
        file.write_text(f"{line}\n")
        return file

    def key(self, name: str) -> Path:
        return self.founder.parent / f"{name}.key"


def admitted_by_command(founder: Path, name: str) -> Path:
    """As `Friends.admit`, the way people do."""
    file, key = founder.parent / f"{name}.swarm", founder.parent / f"{name}.key"
    peer_id = json.loads(run("identity", "--identity", str(key), "--json").stdout)["peer_id"]
    done = run("swarm", "admit", peer_id, "--days", "1", "--folder", str(founder))
    assert done.returncode == 0, done.stderr
    file.write_text(done.stdout)
    return file


@pytest.fixture(scope="module")
def friends(_own_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Friends]:
    folder = tmp_path_factory.mktemp("friends")
    founder = folder / "founder"
    assert run("swarm", "create", "friends", "--out", str(founder)).returncode == 0
    with ExitStack() as stack:
        member = (
            "--swarm",
            str(admitted_by_command(founder, "verifier")),
            "--identity",
            str(folder / "verifier.key"),
        )
        kind = ("--role", "verifier", "--model", "zoo:target", "--dtype", "float32", "--threads", "1")
        node = Node.start("private", ("join", *kind, *member), folder)
        stack.callback(node.close)
        yield Friends(node.wait_ready(), founder)


@pytest.mark.thorough
def test_a_member_generates_and_a_stranger_reads_why_it_may_not(friends: Friends) -> None:
    ask = ("generate", PROMPT, "--max-new-tokens", str(NEW_TOKENS), "--json")
    peers = ("--initial-peers", friends.verifier.maddr)
    swarm = ("--swarm", str(friends.admit("client")), "--identity", str(friends.key("client")))
    done = run(*ask, *peers, *swarm)
    assert done.returncode == 0, done.stderr
    assert tuple(json.loads(done.stdout)["token_ids"]) == greedy(encoded(PROMPT), NEW_TOKENS)
    for place in ((), ("--network", read_swarm_file(friends.founder.parent / "client.swarm").swarm_id)):
        done = run(*ask, *peers, *place)
        assert done.returncode == 1
        assert "no certificate was shown" in done.stderr
        assert not json.loads(done.stdout).get("token_ids")


def test_who_has_no_certificate_is_told_how_to_get_one(friends: Friends) -> None:
    friends.admit("client")
    place = ("--swarm", str(friends.founder.parent / "client.swarm"), "--identity", str(friends.key("nobody")))
    done = run("status", "--initial-peers", friends.verifier.maddr, *place)
    assert done.returncode == 2
    assert "cosine-node swarm admit 12D3KooW" in done.stderr


async def answers(friends: Friends, name: str, gate: PeerGate) -> dict[str, m.Message]:
    """The first answer of the verifier on each protocol; the dial is refused for none."""
    identity, peers = load_identity(friends.key(name)), (friends.verifier.maddr,)
    config = LightConfig(identity=identity, initial_peers=peers, gate=gate)
    transport = await LightTransport.start(config)
    heard: dict[str, m.Message] = {}
    try:
        for protocol in (VERIFY, DISCOVER, STATUS, AUDIT):
            async with Channel(await transport.dial(friends.verifier.peer_id, protocol), protocol) as channel:
                heard[protocol] = await channel.receive()
                with pytest.raises(PeerLost):
                    await channel.receive()
    finally:
        await transport.close()
    return heard


@pytest.mark.thorough
def test_a_stranger_gets_one_error_on_every_protocol_of_a_node(friends: Friends) -> None:
    heard = asyncio.run(answers(friends, "stranger", PeerGate()))
    assert len(heard) == 4
    for message in heard.values():
        assert isinstance(message, m.Error) and message.code == ErrorCode.NOT_ADMITTED


def test_a_member_whose_certificate_has_expired_is_refused_by_the_node(friends: Friends) -> None:
    then_s = time.time() - 2 * DAY_S
    file, key = friends.admit("late", now_s=then_s), friends.key("late")
    peer_id = load_identity(key).peer_id
    done = run("status", "--initial-peers", friends.verifier.maddr, "--swarm", str(file), "--identity", str(key))
    assert done.returncode == 2 and "the certificate has expired" in done.stderr
    # By its own clock, which stands still, it is a member; by the node's it is none.
    gate = PeerGate(Membership(peer_id, read_swarm_file(file), clock=lambda: then_s + 1.0))
    with pytest.raises(PeerLost, match=r"it does not admit us: .*the certificate has expired"):
        asyncio.run(answers(friends, "late", gate))


@pytest.mark.thorough
def test_a_revoked_member_is_refused_once_the_list_is_in_the_swarm_file(friends: Friends) -> None:
    file, key = friends.admit("revoked"), friends.key("revoked")
    ask = ("status", "--initial-peers", friends.verifier.maddr, "--swarm", str(file), "--identity", str(key))
    assert run(*ask).returncode == 0
    peer_id = load_identity(key).peer_id
    line = run("swarm", "revoke", peer_id, "--folder", str(friends.founder)).stdout
    # Another member that knows the list brings it to the node.
    other = friends.admit("bringing")
    other.write_text(other.read_text() + line)
    bringing = ("--swarm", str(other), "--identity", str(friends.key("bringing")))
    assert run("status", "--initial-peers", friends.verifier.maddr, *bringing).returncode == 0
    done = run(*ask)
    assert done.returncode != 0
    assert "revoked" in done.stderr


@pytest.mark.thorough
def test_a_members_node_shows_its_machine_the_swarm(friends: Friends) -> None:
    file, key, port = friends.admit("showing"), str(friends.key("showing")), free_port()
    kind = ("join", "--role", "drafter", "--model", "ngram", "--page", str(port))
    node = (*kind, "--swarm", str(file), "--identity", key)
    refused = run(*node, "--initial-peers", friends.verifier.maddr)
    (page,) = re.findall(r"swarm admit (12D3\w+)", refused.stderr)
    admission = run("swarm", "admit", page, "--days", "1", "--folder", str(friends.founder)).stdout
    file.write_text(file.read_text() + admission)
    started = Node.start("showing", (*node, "--initial-peers", friends.verifier.maddr), friends.founder.parent)
    with closing(started.wait_ready()) as showing:
        # The page comes once the node is ready; until then its socket listens, and what is asked there waits.
        with urlopen(f"http://127.0.0.1:{port}/v1/swarm", timeout=READY_TIMEOUT_S) as reply:
            swarm = json.load(reply)
        assert showing.process.poll() is None
    assert {each["role"]: each["reason"] for each in swarm["nodes"]} == {"verifier": "", "drafter": ""}


@pytest.mark.soak
def test_the_doctor_of_a_member_sees_the_swarm(friends: Friends) -> None:
    place = ("--swarm", str(friends.admit("doctor")), "--identity", str(friends.key("doctor")))
    done = run("doctor", "--initial-peers", friends.verifier.maddr, *place, "--json", timeout_s=120.0)
    found = {check["what"]: check["found"] for check in json.loads(done.stdout)["checks"]}
    assert found["swarm: verifiers"] == "1 of 1 of zoo:target reached"
