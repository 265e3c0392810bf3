"""A verifier that holds a drafter itself, in virtual time: the same text, sooner, and whose work it was."""

from typing import Any

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.engine.base import OutOfPages
from cosine_node.verifier.service import VerifierService
from cosine_p2p.request.results import HOME_SOURCE, Generation

TOKENS = 96


class BrokenEngine(ScriptedEngine):
    """A drafter whose passes fail from the third on."""

    passes = 0

    def forward(self, rows: Any) -> Any:
        self.passes += 1
        if self.passes > 2:
            raise RuntimeError("the card fell off")
        return super().forward(rows)


class FullEngine(ScriptedEngine):
    """A drafter without room for anybody."""

    def reserve(self, sequence: int, tokens: int) -> None:
        raise OutOfPages("full")


def generate(home: ScriptedEngine | None, *, strategy: str = "cosine", clients: int = 1) -> list[Generation]:
    """The generations of clients at one verifier 100 ms away, with no other drafter."""

    async def run() -> list[Generation]:
        async with SimulatedSwarm(one_way_s=0.05) as swarm:
            member = await swarm.verifier(home_engine=home)
            done = []
            for number in range(clients):
                client = await swarm.client(strategy=strategy)
                run = await client.start("hello", max_new_tokens=TOKENS, seed=number)
                sources = {chunk.source async for chunk in run.chunks()}
                done.append(run.result())
                assert (HOME_SOURCE in sources) == bool(done[-1].home_tokens)
            assert isinstance(member.service, VerifierService)
            assert member.service.counts.home_nodes == sum(each.home_tokens for each in done)
            # Its passes are the verifier's time, beside those of the target.
            assert (member.home_use.passes > 0) == (member.home_use.busy_s > 0.0)
            assert member.home_use.passes > 0 or not member.service.counts.home_nodes
            return done

    return run_virtual(run())


def test_a_home_drafter_makes_the_same_text_sooner_and_is_named() -> None:
    (plain,), (helped,) = generate(None), generate(ScriptedEngine(fidelity=0.8, drafter_seed=1))
    assert helped.token_ids == plain.token_ids
    assert helped.seconds < 0.8 * plain.seconds
    assert helped.home_tokens > TOKENS // 4 and not helped.accepted and not helped.drafters
    assert plain.home_tokens == 0


def test_a_home_drafter_that_is_always_wrong_costs_little() -> None:
    (plain,), (helped,) = generate(None), generate(ScriptedEngine(fidelity=0.0, drafter_seed=1))
    assert helped.token_ids == plain.token_ids
    assert helped.seconds < 1.1 * plain.seconds


def test_a_plain_request_gets_none() -> None:
    (done,) = generate(ScriptedEngine(fidelity=0.8, drafter_seed=1), strategy="plain")
    assert done.home_tokens == 0


@pytest.mark.parametrize("engine", [BrokenEngine, FullEngine])
def test_a_home_drafter_that_fails_ends_no_request(engine: type[ScriptedEngine]) -> None:
    home = engine(fidelity=0.8, drafter_seed=1)
    helped = generate(home, clients=3)
    assert [each.token_ids for each in helped] == [each.token_ids for each in generate(None, clients=3)]


def test_nothing_is_left_at_the_drafter_when_requests_have_ended() -> None:
    home = ScriptedEngine(fidelity=0.8, drafter_seed=1)
    generate(home, clients=3)
    # What the last request held is given back before the next pass.
    assert home.open_sequences <= 1
