"""A verifier that coordinates a client's drafters, as processes: the same text, drafted by those it asked."""

from pathlib import Path
from typing import Final

import pytest

from cosine_p2p import Client
from tests.e2e.conftest import EMULATED, Swarm
from tests.e2e.nodes import Node, run
from tests.e2e.reference import encoded, greedy
from tests.thoroughness import soak_rest

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

PROMPT: Final = "The old lighthouse keeper opened the door and"
NEW_TOKENS: Final = 48


@pytest.mark.parametrize("coordinates", soak_rest([True, False]), ids=["coordinates", "declines"])
def test_the_verifier_asks_the_drafters_and_shows_what_they_signed(
    swarm: Swarm, tmp_path: Path, coordinates: bool
) -> None:
    kind = ("--role", "verifier", "--model", "zoo:target", "--dtype", "float32")
    place = ("--identity", str(tmp_path / "key"), "--threads", "1", "--emulate", EMULATED, *swarm.peers)
    limit = () if coordinates else ("--max-coordinated", "0")
    verifier = Node.start("coordinating", ("join", *kind, *place, *limit), tmp_path)
    drafters = {node.peer_id for node in swarm.drafters}
    try:
        trust = (verifier.wait_ready().peer_id, *drafters)
        with Client([swarm.boot.maddr], dtype="float32", trust=trust, coordination="verifier") as client:
            done = client.generate(PROMPT, max_new_tokens=NEW_TOKENS)
    finally:
        verifier.close()
    assert done.token_ids == greedy(encoded(PROMPT), NEW_TOKENS)
    assert done.why[0] == "the verifier coordinates: as you asked"
    assert done.coordinator == ("verifier" if coordinates else "client")
    reason = "coordinated here from now on: the verifier declined, this verifier coordinates no requests"
    assert (reason in done.why) is not coordinates
    assert {drafter.peer_id for drafter in done.drafters} <= drafters
    assert done.drafted > 0
    assert done.accepted == sum(drafter.accepted for drafter in done.drafters) > 0


def test_a_negative_number_of_requests_is_refused() -> None:
    done = run("join", "--role", "verifier", "--max-coordinated", "-1")
    assert done.returncode == 2 and "--max-coordinated 0 or more" in done.stderr
