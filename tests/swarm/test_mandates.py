"""Tests of requests with a coordinating verifier."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from cosine_lab.simulation.swarm import SimulatedMember, SimulatedSwarm
from cosine_lab.simulation.verifiers import Policy
from cosine_node.verifier.coordination import CoordinatedRequest
from cosine_p2p.request.results import Generation
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_protocol.codec import Message
from cosine_protocol.identity import sign
from cosine_protocol.verify import Commit
from tests.scenes import in_virtual_time
from tests.swarm.reference import assert_freed, draft_engine, greedy_text, target_engine
from tests.thoroughness import quick_first, quick_rows

TOKENS = 48
PROMPT, EXPECTED = greedy_text("mandate", TOKENS)
ONE_WAY_S = 0.05
SETTLE_S = 8.0

Meddle = Callable[[SimulatedSwarm, list[SimulatedMember]], Awaitable[None]]


async def _nothing(swarm: SimulatedSwarm, verifiers: list[SimulatedMember]) -> None:
    return


@in_virtual_time
async def generated(
    *, verifiers: int = 1, coordinates: bool = True, meddle: Meddle = _nothing, **options: Any
) -> Generation:
    async with SimulatedSwarm(one_way_s=ONE_WAY_S) as swarm:
        kind = STRATEGIES["cosine"] if coordinates else None
        # Without prompt lookup each token that no drafter drafted takes a pass.
        policy = Policy(uses_prompt_lookup=False)
        served = [await swarm.verifier(target_engine(), coordination=kind, policy=policy) for _ in range(verifiers)]
        for number in range(2):
            await swarm.drafter(draft_engine(0.8, number), domain=f"domain-{number}")
        client = await swarm.client(**({"coordination": "verifier"} | options))
        meddling = asyncio.ensure_future(meddle(swarm, served))
        generation = await client.generate(PROMPT, max_new_tokens=TOKENS)
        await meddling
        await assert_freed(swarm)
        await swarm.leave_clients()
        await asyncio.sleep(SETTLE_S)
        assert not any(member.wire.open_streams for member in swarm.members if member.role == "drafter")
        return generation


def is_taken_back(generation: Generation, reason: str) -> bool:
    return generation.swarm.coordinator == "client" and any(
        line.startswith("coordinated here from now on") and reason in line for line in generation.swarm.why
    )


@pytest.mark.thorough
def test_text_and_accounts_are_as_ever_and_the_client_sends_a_fraction() -> None:
    ours, theirs = generated(coordination="client"), generated()
    assert ours.token_ids == theirs.token_ids == EXPECTED
    assert (ours.swarm.coordinator, theirs.swarm.coordinator) == ("client", "verifier")
    assert theirs.swarm.accepted == sum(report.accepted for report in theirs.swarm.drafters) > 0
    assert theirs.usage.completion_tokens == theirs.swarm.rounds + theirs.swarm.accepted
    assert (
        theirs.swarm.drafted == sum(report.drafted for report in theirs.swarm.drafters) >= theirs.swarm.offered > 0
    )
    assert {report.domain for report in theirs.swarm.drafters} == {"domain-0", "domain-1"}
    assert all(report.rtt_ms == pytest.approx(100.0, abs=1.0) for report in theirs.swarm.drafters)
    assert any("domain-0: asked to draft, 100 ms away" in line for line in theirs.swarm.why)
    assert theirs.seconds < ours.seconds
    assert (
        5 * theirs.swarm.bytes_sent < ours.swarm.bytes_sent
        and 3 * theirs.swarm.bytes_received < ours.swarm.bytes_received
    )


def test_a_verifier_that_declines_costs_nothing_but_the_question() -> None:
    done = generated(coordinates=False)
    assert is_taken_back(done, "this verifier does not coordinate requests")
    assert done.token_ids == EXPECTED and done.swarm.accepted > 0


def test_another_verifier_gets_a_mandate_of_its_own_where_the_first_is_lost() -> None:
    async def kill(swarm: SimulatedSwarm, verifiers: list[SimulatedMember]) -> None:
        await asyncio.sleep(1.2)
        await next(member for member in verifiers if member.service.requests).kill()

    done = generated(verifiers=2, meddle=kill)
    assert done.token_ids == EXPECTED
    assert (len(done.swarm.verifiers), done.swarm.coordinator) == (2, "verifier")
    assert sum(line.startswith("the verifier coordinates") for line in done.swarm.why) == 2


@pytest.mark.parametrize("changes", quick_rows([({"most_tokens": TOKENS // 2},), ({"lifetime_s": 1.0},)]))
def test_a_mandate_ends_by_tokens_and_time(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    monkeypatch.setattr(
        "cosine_p2p.session.delegation.sign",
        lambda client, mandate, digest: sign(client, replace(mandate, **changes), digest=digest),
    )
    done = generated()
    assert done.token_ids == EXPECTED
    assert is_taken_back(done, "") and done.swarm.accepted > 0


@pytest.mark.parametrize("lie", quick_first(["unshown", "another"]))
def test_a_verifier_that_credits_whom_it_likes_is_noticed(monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
    honest = CoordinatedRequest.note

    def note(self: CoordinatedRequest, message: Message) -> Message:
        told = honest(self, message)
        if isinstance(told, Commit):
            named = bytes(1 if lie == "unshown" else 3 - author if author else 0 for author in told.authors)
            return replace(told, authors=named)
        return told

    monkeypatch.setattr(CoordinatedRequest, "note", note)
    done = generated()
    assert done.token_ids == EXPECTED
    assert is_taken_back(done, "it credited drafters without showing what they signed")
