"""A client without hivemind, torch or a network daemon, against real nodes: the same text and guarantees."""

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.conftest import Swarm
from tests.e2e.nodes import run
from tests.e2e.reference import encoded, greedy

pytestmark = [
    pytest.mark.network,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("libp2p") is None, reason="needs py-libp2p"),
]

SCRIPT: Final = Path(__file__).with_name("light_client.py")
PROMPT: Final = "The old lighthouse keeper opened the door and"
NEW_TOKENS: Final = 48


class LightClient:
    """The script at work; `lines` are what it has said so far."""

    def __init__(self, do: str, maddr: str, **options: Any) -> None:
        task = {"do": do, "peers": [maddr], "network": "main", "prompt": PROMPT, "options": options}
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


def test_the_text_is_the_targets_and_streams(swarm: Swarm) -> None:
    client = LightClient("generate", swarm.boot.maddr, max_new_tokens=NEW_TOKENS)
    done = client.result()
    assert done["transport"] == "LightTransport"
    assert tuple(done["token_ids"]) == greedy(encoded(PROMPT), NEW_TOKENS)
    chunks = client.lines[:-2]
    assert "".join(chunk["text"] for chunk in chunks) == done["text"]
    assert len(chunks) > 1
    assert done["drafted"] > 0
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
