"""A client without hivemind, torch or a network daemon, against real nodes: the same text and guarantees."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.conftest import EMULATED, Swarm
from tests.e2e.nodes import Node, run
from tests.e2e.reference import encoded, greedy
from tests.thoroughness import quick_first

pytestmark = [
    pytest.mark.network,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("libp2p") is None, reason="needs py-libp2p"),
]

SCRIPT: Final = Path(__file__).with_name("light_client.py")
PROMPT: Final = "The old lighthouse keeper opened the door and"
NEW_TOKENS: Final = 48
NETWORK: Final = "light-pair"
KILL_AFTER_TOKENS: Final = 8
SLOWER: Final = "90/6@10"


class LightClient:
    """The script at work; `lines` are what it has said so far."""

    def __init__(self, do: str, maddr: str, *, network: str = "main", **options: Any) -> None:
        task = {"do": do, "peers": [maddr], "network": network, "prompt": PROMPT, "options": options}
        self.lines: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            (sys.executable, SCRIPT, json.dumps(task)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def says(self) -> Iterator[dict[str, Any]]:
        """Line by line to the end, which leaves nothing behind and nothing on stderr."""
        assert self._process.stdout is not None and self._process.stderr is not None
        for line in self._process.stdout:
            self.lines.append(json.loads(line))
            yield self.lines[-1]
        errors = self._process.stderr.read()
        assert (self._process.wait(timeout=30), errors) == (0, "")
        assert self.lines[-1] == {"threads": [], "modules": []}

    def result(self) -> dict[str, Any]:
        """The last word, once all is said."""
        for _ in self.says():
            pass
        return self.lines[-2]


@pytest.mark.parametrize("strategy", quick_first(["cosine", "plain"]))
def test_the_text_is_the_targets_and_streams(swarm: Swarm, strategy: str) -> None:
    client = LightClient("generate", swarm.boot.maddr, strategy=strategy, max_new_tokens=NEW_TOKENS)
    done = client.result()
    assert done["transport"] == "LightTransport"
    assert tuple(done["token_ids"]) == greedy(encoded(PROMPT), NEW_TOKENS)
    chunks = client.lines[:-2]
    assert "".join(chunk["text"] for chunk in chunks) == done["text"]
    assert len(chunks) > 1
    assert (done["drafted"] > 0) is (strategy == "cosine")
    assert done["verifiers"] == [swarm.verifier.peer_id]


@pytest.mark.thorough
def test_a_stream_left_early_frees_the_verifier(swarm: Swarm) -> None:
    client = LightClient("give up", swarm.boot.maddr, strategy="plain", max_new_tokens=400)
    assert client.result() == {"requests": 0}


@pytest.mark.thorough
def test_the_command_takes_the_transport_from_the_environment(swarm: Swarm) -> None:
    options = ("--max-new-tokens", "24", "--strategy", "plain", "--json", *swarm.peers)
    done = run("generate", PROMPT, *options, environment={"COSINE_TRANSPORT": "light"})
    assert done.returncode == 0, done.stderr
    assert tuple(json.loads(done.stdout)["token_ids"]) == greedy(encoded(PROMPT), 24)


@pytest.fixture(scope="module")
def pair(swarm: Swarm) -> Iterator[tuple[Node, Node]]:
    """Two verifiers that die here; the first is the faster one."""
    with ExitStack() as stack:

        def started(name: str, emulated: str, *arguments: str) -> Node:
            place = ("--role", "verifier", "--model", "zoo:target", "--network", NETWORK, "--dtype", "float32")
            node = Node.start(
                name, ("join", *place, "--threads", "1", "--emulate", emulated, *arguments), swarm.folder
            )
            stack.callback(node.close)
            return node.wait_ready()

        first = started("light-first", EMULATED)
        yield first, started("light-second", SLOWER, "--initial-peers", first.maddr)


def killing(client: LightClient, node: Node) -> None:
    """Kill a node once some tokens have come, then hear the client out."""
    tokens = 0
    for line in client.says():
        tokens += line.get("tokens", 0)
        if tokens >= KILL_AFTER_TOKENS and node.process.poll() is None:
            node.kill()


# The session is the same over either transport: `test_faults` plays it over the full one in every check.
@pytest.mark.soak
def test_a_second_verifier_continues_the_same_text(pair: tuple[Node, Node]) -> None:
    doomed, heir = pair
    client = LightClient("generate", heir.maddr, network=NETWORK, strategy="plain", max_new_tokens=NEW_TOKENS)
    killing(client, doomed)
    done = client.lines[-2]
    assert tuple(done["token_ids"]) == greedy(encoded(PROMPT), NEW_TOKENS)
    assert done["verifiers"] == [doomed.peer_id, heir.peer_id]


@pytest.mark.soak
def test_the_last_verifier_killed_is_named(pair: tuple[Node, Node]) -> None:
    _, heir = pair
    client = LightClient("generate", heir.maddr, network=NETWORK, strategy="plain", max_new_tokens=400)
    killing(client, heir)
    end = client.lines[-2]
    assert end["kind"] == "GenerationFailed"
    assert heir.peer_id in end["error"] and "\n" not in end["error"]
