"""A private swarm of processes: members generate, and a stranger gets nothing."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from cosine_p2p.trust.membership import read_swarm_file
from tests.e2e.nodes import Node, run, starting
from tests.e2e.reference import PROMPT, encoded, greedy

pytestmark = [
    pytest.mark.network,
    pytest.mark.thorough,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("libp2p") is None, reason="needs py-libp2p"),
]

NEW_TOKENS: Final = 24


@dataclass(frozen=True, slots=True)
class Friends:
    """A swarm of a verifier, and its founder's folder."""

    verifier: Node
    founder: Path

    def key(self, name: str) -> Path:
        return self.founder.parent / f"{name}.key"


def admitted(founder: Path, name: str) -> Path:
    """Return the swarm file of a new member, valid for a day. Its key is in the same folder."""
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
    with starting(folder) as start:
        member = ("--swarm", str(admitted(founder, "verifier")), "--identity", str(folder / "verifier.key"))
        kind = ("--role", "verifier", "--model", "zoo:target", "--dtype", "float32", "--threads", "1")
        yield Friends(start("private", "join", *kind, *member).wait_ready(), founder)


def test_members_by_certificate_and_by_link_generate_and_a_stranger_reads_why_it_may_not(friends: Friends) -> None:
    ask = ("generate", PROMPT, "--max-new-tokens", str(NEW_TOKENS), "--json")
    peers = ("--initial-peers", friends.verifier.maddr)
    swarm = ("--swarm", str(admitted(friends.founder, "client")), "--identity", str(friends.key("client")))
    done = run(*ask, *peers, *swarm)
    assert done.returncode == 0, done.stderr
    assert tuple(json.loads(done.stdout)["token_ids"]) == greedy(encoded(PROMPT), NEW_TOKENS)
    invited = run("invite", "--folder", str(friends.founder), *peers)
    assert invited.returncode == 0, invited.stderr
    done = run(*ask, "--initial-peers", invited.stdout.strip())
    assert done.returncode == 0, done.stderr
    assert tuple(json.loads(done.stdout)["token_ids"]) == greedy(encoded(PROMPT), NEW_TOKENS)
    for place in ((), ("--network", read_swarm_file(friends.founder.parent / "client.swarm").swarm_id)):
        done = run(*ask, *peers, *place)
        assert done.returncode == 1
        assert "no certificate was shown" in done.stderr
        assert not json.loads(done.stdout).get("token_ids")
