"""Receipts in a whole swarm: drafters get them for their tokens, and no more than that."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import Member, SimulatedSwarm, numbered_identity
from cosine_node.drafter.service import DrafterService
from cosine_p2p.directory.peer_file import PeerFile
from cosine_p2p.request.results import Generation
from cosine_p2p.trust.earned_credit import Earned
from cosine_protocol.messages import Earning, Receipt
from cosine_protocol.request import Sampling
from cosine_protocol.statements import read_receipt, sign_earning, sign_receipt
from tests.swarm.reference import draft_engine, plain_stream, prompt_of, target_engine
from tests.thoroughness import soak_rest

TOKENS: Final = 80
PROMPT: Final = prompt_of(random.Random("receipts"))
SETTLE_S: Final = 1.0
"""Longer than the last messages are on their way."""
EXPECTED: Final = plain_stream(PROMPT, Sampling(), tokens=TOKENS)


def earned(drafter: Member) -> int:
    assert isinstance(drafter.service, DrafterService) and drafter.service.receipts is not None
    return drafter.service.receipts.earnings().tokens


def generated(**options: Any) -> tuple[Generation, dict[str, int]]:
    """A generation with two drafters, and what each has earned by it."""

    async def run() -> tuple[Generation, dict[str, int]]:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(target_engine())
            drafters = [await swarm.drafter(draft_engine(0.8, number), domain=f"{number}") for number in range(2)]
            client = await swarm.client(**options)
            done = await client.generate(PROMPT, max_new_tokens=TOKENS)
            await asyncio.sleep(SETTLE_S)
            return done, {drafter.identity.peer_id: earned(drafter) for drafter in drafters}

    return run_virtual(run())


@pytest.mark.parametrize("coordination", ["client", "verifier"])
def test_each_drafter_gets_one_for_the_tokens_that_its_client_counted(coordination: str) -> None:
    done, tokens = generated(coordination=coordination)
    accepted = {report.peer_id: report.accepted for report in done.drafters if report.accepted}
    assert done.token_ids == EXPECTED
    assert done.coordinator == coordination
    assert accepted and {peer_id: count for peer_id, count in tokens.items() if count} == accepted
    assert done.receipts == len(accepted)


def test_a_client_that_shares_none_sends_none() -> None:
    done, tokens = generated(share_receipts=False)
    assert done.accepted and not done.receipts
    assert set(tokens.values()) == {0}


REQUESTS: Final = 24


def fakes(newcomer: Member, target_digest: bytes, *, verifier: str = "") -> None:
    """Let a drafter show a hundred receipts of its own making; with a `verifier`, forged in its name."""
    service, name = newcomer.service, newcomer.identity.peer_id
    assert isinstance(service, DrafterService) and service.receipts is not None
    for number in range(100):
        own_verifier, own_client = numbered_identity(10_000 + number), numbered_identity(20_000 + number)
        d_0 = number.to_bytes(16)
        earning = Earning(target_digest, own_client.peer_id, name, 100, 100, 0.0)
        receipt = Receipt(verifier or own_verifier.peer_id, ("code",), sign_earning(own_verifier, earning, d_0=d_0))
        service.receipts.keep(read_receipt(sign_receipt(own_client, receipt, d_0=d_0)))


def choices(lie: str) -> Counter[str]:
    """The requests in which a new client, which may ask one drafter, has asked each of two that claim the same.

    One of them has drafted for other clients, the other is new, or shows what it has made up.
    """

    async def run() -> Counter[str]:
        async with SimulatedSwarm() as swarm:
            verifier = await swarm.verifier(target_engine())
            honest = await swarm.drafter(draft_engine(0.8, 1))
            for _ in range(3):
                await (await swarm.client()).generate(PROMPT, max_new_tokens=TOKENS)
            newcomer = await swarm.drafter(draft_engine(0.8, 2))
            if lie:
                fakes(newcomer, swarm.facts.digest(), verifier=verifier.identity.peer_id if lie == "forged" else "")
            names = {honest.identity.peer_id: "honest", newcomer.identity.peer_id: "newcomer"}
            client = await swarm.client()
            await client.generate(PROMPT, max_new_tokens=TOKENS)
            asked: Counter[str] = Counter()
            for _ in range(REQUESTS):
                done = await client.generate(PROMPT, max_new_tokens=12, max_drafters=1)
                asked.update(names[report.peer_id] for report in done.drafters)
            return asked

    return run_virtual(run())


@pytest.mark.thorough
@pytest.mark.parametrize("lie", soak_rest(["own verifiers and clients", "", "forged"]))
def test_who_has_earned_receipts_is_preferred_to_who_claims_the_same(lie: str) -> None:
    asked = choices(lie)
    assert asked["honest"] >= 0.75 * REQUESTS, asked


def test_a_client_of_a_later_run_knows_who_has_shown_receipts(tmp_path: Path) -> None:
    """Each client makes one request, as `generate` does; the last of them knows by the file alone."""
    file = PeerFile(tmp_path / "peers.json", wall_s=lambda: 1e9)

    async def run() -> tuple[str, Mapping[str, Earned]]:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(target_engine())
            drafter = await swarm.drafter(draft_engine(0.8, 1))
            for _ in range(3):
                await (await swarm.client(peer_file=file)).generate(PROMPT, max_new_tokens=TOKENS)
                await asyncio.sleep(SETTLE_S)
                await swarm.leave_clients()
            return drafter.identity.peer_id, (await swarm.client(peer_file=file)).earned()

    drafter, earned = run_virtual(run())
    assert list(earned) == [drafter] and earned[drafter].clients == 2
    assert PeerFile(tmp_path / "peers.json").earned() == earned
