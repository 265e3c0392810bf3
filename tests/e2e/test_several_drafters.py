"""Several drafters in one process: each a node of its own to the network, one process to whoever runs it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_p2p.client import AsyncClient
from cosine_p2p.request.results import Generation
from tests.e2e.conftest import Swarm
from tests.e2e.nodes import HOST, Node, run
from tests.e2e.reference import encoded, greedy

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

MODELS: Final = ("zoo:draft-literature", "zoo:draft-math", "ngram")
PROMPT: Final = "The old lighthouse keeper opened the door and"
NEW_TOKENS: Final = 32


@pytest.fixture(scope="module")
def several(swarm: Swarm) -> Iterator[tuple[Node, list[dict[str, Any]]]]:
    """The process and the ready events of its nodes."""
    models = [part for model in MODELS for part in ("--model", model)]
    place = ("--identity", str(swarm.folder / "several"), "--threads", "1", *swarm.peers)
    process = Node.start("several", ("join", "--role", "drafter", *models, *place), swarm.folder)
    try:
        yield process, [process.wait_ready().ready for _ in MODELS]
    finally:
        process.close()


def test_each_is_ready_under_an_identity_of_its_own(
    swarm: Swarm, several: tuple[Node, list[dict[str, Any]]]
) -> None:
    _, ready = several
    assert {event["model"] for event in ready} == set(MODELS)
    assert len({event["peer_id"] for event in ready}) == len(MODELS)
    keys = sorted(file.name for file in swarm.folder.glob("several*") if file.suffix != ".log")
    assert keys == ["several", "several-2", "several-3"]


async def asked(swarm: Swarm, trust: tuple[str, ...]) -> Generation:
    async with AsyncClient([swarm.boot.maddr], dtype="float32", trust=trust) as client:
        return await client.generate(PROMPT, max_new_tokens=NEW_TOKENS)


@pytest.mark.parametrize("model", [model for model in MODELS if model.startswith("zoo:")])
def test_each_drafts_for_itself(swarm: Swarm, several: tuple[Node, list[dict[str, Any]]], model: str) -> None:
    (peer_id,) = (event["peer_id"] for event in several[1] if event["model"] == model)
    trust = (swarm.verifier.peer_id, peer_id)
    done = asyncio.run(asked(swarm, trust))
    assert done.token_ids == greedy(encoded(PROMPT), NEW_TOKENS)
    (drafter,) = done.drafters
    # How many of them come in time, and are accepted, the machine decides.
    assert drafter.peer_id == peer_id and drafter.drafted > 0


def test_a_model_that_cannot_be_loaded_ends_the_process_before_any_is_ready(swarm: Swarm, tmp_path: Path) -> None:
    models = ("--model", "ngram", "--model", "/no/such/model")
    place = ("--host-maddr", HOST, *swarm.peers)
    key = ("--identity", str(tmp_path / "key"), "--log-format", "json")
    done = run("join", "--role", "drafter", *models, *place, *key)
    assert (done.returncode, done.stdout) == (2, "")
    assert "/no/such/model cannot be served: " in done.stderr.splitlines()[-1]


def test_sigterm_drains_all_of_them(several: tuple[Node, list[dict[str, Any]]]) -> None:
    process, ready = several
    assert process.stop() == 0
    stopped = [process.events.get(timeout=10) for _ in MODELS]
    assert all(event is not None and event["event"] == "stopped" for event in stopped)
    assert {event["peer_id"] for event in stopped if event} == {event["peer_id"] for event in ready}
