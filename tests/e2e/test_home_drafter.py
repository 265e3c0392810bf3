"""A verifier with a drafter of its own, as a process: the same text, part of it drafted beside the target."""

from pathlib import Path
from typing import Final

import pytest

from cosine_p2p import Client
from cosine_p2p.request.origins import HOME_SOURCE
from tests.e2e.conftest import EMULATED, Swarm
from tests.e2e.nodes import Node, run
from tests.e2e.reference import encoded, greedy

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

PROMPT: Final = "The old lighthouse keeper opened the door and"
NEW_TOKENS: Final = 48


def test_a_verifier_s_own_drafter_drafts_and_is_named(swarm: Swarm, tmp_path: Path) -> None:
    models = ("--model", "zoo:target", "--draft-model", "zoo:draft-literature", "--dtype", "float32")
    place = ("--identity", str(tmp_path / "key"), "--threads", "1", "--emulate", EMULATED, *swarm.peers)
    verifier = Node.start("home", ("join", "--role", "verifier", *models, *place), tmp_path)
    try:
        peer_id = verifier.wait_ready().peer_id
        with Client([swarm.boot.maddr], dtype="float32", trust=(peer_id,), max_drafters=0) as client:
            stream = client.stream(PROMPT, max_new_tokens=NEW_TOKENS)
            chunks = []
            while True:
                try:
                    chunks.append(next(stream))
                except StopIteration as end:
                    done = end.value
                    break
        assert done.token_ids == greedy(encoded(PROMPT), NEW_TOKENS)
        assert done.home_tokens == sum(len(chunk.token_ids) for chunk in chunks if chunk.source == HOME_SOURCE)
        assert done.home_tokens > 0 and not done.accepted
        assert done.rounds < NEW_TOKENS
    finally:
        verifier.close()


def test_only_a_verifier_holds_one() -> None:
    done = run("join", "--role", "drafter", "--draft-model", "zoo:draft-code")
    assert done.returncode == 2 and "--draft-model is for verifiers" in done.stderr
