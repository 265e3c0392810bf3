"""A client without hivemind, torch or a network daemon, against real nodes."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.conftest import Swarm
from tests.e2e.reference import PROMPT, encoded, greedy

pytestmark = [
    pytest.mark.network,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("libp2p") is None, reason="needs py-libp2p"),
]

SCRIPT: Final = Path(__file__).with_name("light_client.py")
NEW_TOKENS: Final = 48


def test_the_text_is_the_targets_and_streams(swarm: Swarm) -> None:
    """The script leaves nothing behind and nothing on stderr."""
    task = {"peers": [swarm.boot.maddr], "prompt": PROMPT, "options": {"max_new_tokens": NEW_TOKENS}}
    command = (sys.executable, SCRIPT, json.dumps(task))
    script = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (script.returncode, script.stderr) == (0, "")
    *chunks, done, last = map(json.loads, script.stdout.splitlines())
    assert last == {"threads": [], "modules": []}
    assert done["transport"] == "LightTransport"
    assert tuple(done["token_ids"]) == greedy(encoded(PROMPT), NEW_TOKENS)
    assert "".join(chunk["text"] for chunk in chunks) == done["text"]
    assert len(chunks) > 1
    assert done["drafted"] > 0
    assert done["verifiers"] == [swarm.verifier.peer_id]
