"""Looks at drafters cost what is promised, and what pays is found, where a second token in a pass is dear or cheap.

Virtual time, passes of 20 ms. Drafters share the verifier's processor: each lengthens passes by a share.
"""

import asyncio
import random
from collections.abc import Sequence
from functools import cache
from typing import Final

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import Member, SimulatedSwarm
from cosine_node.engine.curve import CostCurve
from tests.swarm.reference import draft_engine, prompt_of, target_engine
from tests.thoroughness import quick_first

DEAR: Final = CostCurve(((1, 0.020), (2, 0.040), (4, 0.070)))
CHEAP: Final = CostCurve(((1, 0.020), (4, 0.024), (8, 0.029), (16, 0.043), (32, 0.074)))
SHARE: Final = 0.12
WATCHED_S: Final = 0.01


async def share_processor(verifier: Member, drafters: Sequence[Member], *, share: float = SHARE) -> None:
    """Lengthen the verifier's passes by `share` for each drafter that has run a pass lately."""
    before = [0] * len(drafters)
    while True:
        await asyncio.sleep(WATCHED_S)
        now = [drafter.machine.use.passes for drafter in drafters]
        verifier.machine.slowness = 1 + share * sum(a != b for a, b in zip(now, before, strict=True))
        before = now


async def asked(
    strategy: str,
    fidelities: tuple[float, ...],
    one_way_s: float,
    temperature: float,
    lengths: tuple[int, ...],
    *,
    curve: CostCurve = DEAR,
    share: float = SHARE,
) -> list[float]:
    """The seconds of requests of these lengths, one after the other, of a client that is new."""
    async with SimulatedSwarm(one_way_s=one_way_s) as swarm:
        verifier = await swarm.verifier(target_engine(), curve=curve)
        drafters = [
            await swarm.drafter(draft_engine(fidelity, number), domain=f"d{number}")
            for number, fidelity in enumerate(fidelities)
        ]
        sharing = asyncio.ensure_future(share_processor(verifier, drafters, share=share))
        client = await swarm.client(strategy=strategy)
        rng = random.Random("dear")
        done = [
            await client.generate(prompt_of(rng), max_new_tokens=tokens, temperature=temperature, seed=number)
            for number, tokens in enumerate(lengths)
        ]
        sharing.cancel()
        return [generation.seconds for generation in done]


@cache
def plain_s(one_way_s: float, temperature: float, lengths: tuple[int, ...]) -> list[float]:
    return run_virtual(asked("plain", (), one_way_s, temperature, lengths))


@pytest.mark.parametrize("fidelity", quick_first([0.3, 0.1, 0.6, 0.9]))
@pytest.mark.parametrize("temperature", quick_first([0.8, 0.0]))
@pytest.mark.parametrize("one_way_s", quick_first([0.01, 0.0, 0.05]))
def test_no_request_loses_a_percent_not_even_the_first(
    fidelity: float, temperature: float, one_way_s: float
) -> None:
    lengths = (64, 128, 400)
    ours = run_virtual(asked("cosine", (fidelity,) * 3, one_way_s, temperature, lengths))
    for plain, seconds in zip(plain_s(one_way_s, temperature, lengths), ours, strict=True):
        assert plain / seconds >= 0.99


def test_looks_at_drafters_cost_a_percent_of_the_time() -> None:
    lengths = (200,) * 24
    ours = run_virtual(asked("cosine", (0.6, 0.6), 0.01, 0.0, lengths))
    assert sum(plain_s(0.01, 0.0, lengths)) / sum(ours) >= 0.99


def test_drafters_that_are_always_right_are_found() -> None:
    lengths = (200,) * 26
    seconds = run_virtual(asked("cosine", (1.0,), 0.01, 0.0, lengths))
    assert plain_s(0.01, 0.0, lengths)[-1] / seconds[-1] > 1.02


@pytest.mark.parametrize("share", quick_first([0.3, 0.12]))
@pytest.mark.parametrize("one_way_s", quick_first([0.01, 0.0]))
@pytest.mark.parametrize(
    ("fidelity", "least"), [(0.0, (0.9, 0.97, 0.97)), (0.3, (0.9, 0.95, 0.97)), (0.9, (1.3, 1.3, 1.3))]
)
def test_where_drafts_are_cheap_a_new_client_pays_a_few_passes_once(
    fidelity: float, least: tuple[float, ...], one_way_s: float, share: float
) -> None:
    lengths = (64, 64, 128)
    plain = run_virtual(asked("plain", (), one_way_s, 0.8, lengths, curve=CHEAP))
    ours = run_virtual(asked("cosine", (fidelity,) * 3, one_way_s, 0.8, lengths, curve=CHEAP, share=share))
    for without_s, seconds, speed in zip(plain, ours, least, strict=True):
        assert without_s / seconds >= speed
