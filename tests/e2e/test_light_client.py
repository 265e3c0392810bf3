"""A client without hivemind, torch or a network daemon, against real nodes: the same text and guarantees."""

import json
import subprocess
import sys
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


def said(do: str, maddr: str, **options: Any) -> list[dict[str, Any]]:
    """What the script says. It leaves nothing behind and nothing on stderr."""
    task = {"do": do, "peers": [maddr], "network": "main", "prompt": PROMPT, "options": options}
    done = subprocess.run(
        (sys.executable, SCRIPT, json.dumps(task)), capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    *lines, last = map(json.loads, done.stdout.splitlines())
    assert last == {"threads": [], "modules": []}
    return lines


def test_the_text_is_the_targets_and_streams(swarm: Swarm) -> None:
    *chunks, done = said("generate", swarm.boot.maddr, max_new_tokens=NEW_TOKENS)
    assert done["transport"] == "LightTransport"
    assert tuple(done["token_ids"]) == greedy(encoded(PROMPT), NEW_TOKENS)
    assert "".join(chunk["text"] for chunk in chunks) == done["text"]
    assert len(chunks) > 1
    assert done["drafted"] > 0
    assert done["verifiers"] == [swarm.verifier.peer_id]


@pytest.mark.thorough
def test_a_stream_left_early_frees_the_verifier(swarm: Swarm) -> None:
    assert said("give up", swarm.boot.maddr, strategy="plain", max_new_tokens=400) == [{"requests": 0}]


@pytest.mark.thorough
def test_the_command_takes_the_transport_from_the_environment(swarm: Swarm) -> None:
    options = ("--max-new-tokens", "24", "--strategy", "plain", "--json", *swarm.peers)
    done = run("generate", PROMPT, *options, environment={"COSINE_TRANSPORT": "light"})
    assert done.returncode == 0, done.stderr
    assert tuple(json.loads(done.stdout)["token_ids"]) == greedy(encoded(PROMPT), 24)
