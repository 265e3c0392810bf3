"""Tests of the gain and the cost of speculation, exact in virtual time.

By default verifier passes take 60 ms and draft tokens 6 ms. On a shared processor each active drafter lengthens the
verifier's passes by a share.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Any, Final

import pytest

from cosine_engine.curve import CostCurve
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.stages import TOKEN_BYTES
from cosine_lab.simulation.swarm import SimulatedHome, SimulatedMember, SimulatedSwarm
from cosine_protocol.request import Sampling
from tests.swarm.chain_swarm import ChainSwarm
from tests.swarm.reference import draft_engine, plain_stream, prompt_of, target_engine

pytestmark = pytest.mark.thorough

FLAT: Final = CostCurve(((1, 0.020), (8, 0.021), (16, 0.024), (64, 0.05)))
HEAD: Final = CostCurve(((1, 0.0012), (16, 0.0016)))
SHARE: Final = 0.12
WATCHED_S: Final = 0.01
LONGER: Final = (64, 128, 400)
EXPENSIVE: Final[dict[str, Any]] = {"share": SHARE, "curve": CostCurve(((1, 0.020), (2, 0.040), (4, 0.070)))}
CHEAP: Final[dict[str, Any]] = {
    "share": 0.3,
    "curve": CostCurve(((1, 0.020), (4, 0.024), (8, 0.029), (16, 0.043), (32, 0.074))),
    "temperature": 0.8,
}
BESIDE: Final[dict[str, Any]] = {"share": SHARE, "curve": FLAT, "one_way_s": 0.005}
"""A verifier with its own drafter that shares its processor with other drafters."""


async def share_processor(verifier: SimulatedMember, drafters: Sequence[SimulatedMember], *, share: float) -> None:
    """Lengthen the verifier's passes by `share` for each drafter that has run a pass lately."""
    before = [0] * len(drafters)
    while True:
        await asyncio.sleep(WATCHED_S)
        now = [drafter.machine.use.passes for drafter in drafters]
        verifier.machine.slowness = 1 + share * sum(a != b for a, b in zip(now, before, strict=True))
        before = now


async def asked(
    fidelities: Sequence[float],
    lengths: Sequence[int],
    *,
    strategy: str = "cosine",
    one_way_s: float = 0.01,
    temperature: float = 0.0,
    share: float = 0.0,
    curve: CostCurve | None = None,
    head: CostCurve | None = None,
    max_drafters: int | None = None,
) -> list[float]:
    """Return the seconds of consecutive requests of these lengths from a new client.

    With a `head` the verifier has its own drafter with that curve, and has served another client before.
    """
    async with SimulatedSwarm(one_way_s=one_way_s) as swarm:
        verifier_options: dict[str, Any] = {} if curve is None else {"curve": curve}
        if head is not None:
            verifier_options |= {"home": SimulatedHome(draft_engine(0.85, 9), head)}
        verifier = await swarm.verifier(target_engine(), **verifier_options)
        drafters = [await swarm.drafter(draft_engine(f, n), domain=f"d{n}") for n, f in enumerate(fidelities)]
        sharing = asyncio.ensure_future(share_processor(verifier, drafters, share=share))
        rng = random.Random("speed" if curve is None else "dear" if head is None else "beside")
        sampled: dict[str, Any] = {"temperature": temperature}
        if head is not None:
            earlier = await swarm.client(max_drafters=0)
            await earlier.generate(prompt_of(rng), max_new_tokens=64, seed=99, **sampled)
        client = await swarm.client(strategy=strategy, max_drafters=max_drafters)
        done = [
            await client.generate(prompt_of(rng), max_new_tokens=tokens, seed=number, **sampled)
            for number, tokens in enumerate(lengths)
        ]
        sharing.cancel()
        return [generation.seconds for generation in done]


@pytest.mark.parametrize(
    ("fidelities", "lengths", "least", "options"),
    [
        # A good drafter pays, also where every first fragment comes late: half a pass of delay each way.
        ((0.8,), (96,), (2.0,), {"one_way_s": 0.005}),
        ((0.8,), (96,), (1.5,), {"one_way_s": 0.02}),
        ((0.8,), (96,), (1.2,), {"one_way_s": 0.05}),
        ((1.0,), (96,), (2.5,), {"one_way_s": 0.05}),
        # A bad one costs at most 2 %.
        *(((0.0,), (96,), (0.98,), {"one_way_s": one_way_s}) for one_way_s in (0.0, 0.02, 0.15)),
        ((0.0, 0.1, 0.3, 0.2), (96,), (0.98,), {"one_way_s": 0.02}),
        ((0.5,), (96,), (0.98,), {"one_way_s": 0.02}),
        # Where drafts are expensive no request loses a percent.
        ((0.3,) * 3, LONGER, (0.99,) * 3, EXPENSIVE | {"temperature": 0.8}),
        ((0.9,) * 3, LONGER, (0.99,) * 3, EXPENSIVE | {"temperature": 0.8}),
        ((0.3,) * 3, LONGER, (0.99,) * 3, EXPENSIVE | {"one_way_s": 0.05}),
        # Where they are cheap a new client pays a few passes once.
        ((0.0,) * 3, (64, 64, 128), (0.9, 0.97, 0.97), CHEAP),
        ((0.3,) * 3, (64, 64, 128), (0.9, 0.95, 0.97), CHEAP | {"one_way_s": 0.0}),
        ((0.9,) * 3, (64, 64, 128), (1.3,) * 3, CHEAP),
    ],
)
def test_requests_are_faster_than_plain_decoding(
    fidelities: tuple[float, ...], lengths: tuple[int, ...], least: tuple[float, ...], options: dict[str, Any]
) -> None:
    ours = run_virtual(asked(fidelities, lengths, **options))
    plain = run_virtual(asked((), lengths, strategy="plain", **options))
    for without_s, seconds, bound in zip(plain, ours, least, strict=True):
        assert without_s / seconds >= bound


@pytest.mark.parametrize(("fidelity", "temperature"), [(0.4, 0.8), (0.0, 0.0)])
def test_beside_a_good_head_no_request_of_a_new_client_takes_longer(fidelity: float, temperature: float) -> None:
    options: dict[str, Any] = {"temperature": temperature, "head": HEAD, **BESIDE}
    alone = run_virtual(asked((fidelity,) * 3, (64,) * 4, max_drafters=0, **options))
    beside = run_virtual(asked((fidelity,) * 3, (64,) * 4, **options))
    for without_s, seconds in zip(alone, beside, strict=True):
        assert without_s / seconds >= 0.99


@pytest.mark.parametrize(("mbit", "more"), [(10.0, 1.15), (100.0, 1.35)])
def test_a_prompt_over_stages_takes_little_longer_than_its_activations(mbit: float, more: float) -> None:
    async def run() -> float:
        swarm = ChainSwarm.make(uplink_bits_per_s=1e6 * mbit)
        async with swarm.swarm:
            for part in range(3):
                await swarm.stage(f"{part}", part, parts=3)
            await swarm.head()
            client = await swarm.swarm.client(timeout_s=900.0)
            seconds = 0.0
            for number in range(2):
                prompt, began_s = prompt_of(random.Random(number), 1000), asyncio.get_running_loop().time()
                done = await client.generate(prompt, strategy="plain", max_new_tokens=1, seed=1)
                assert done.token_ids == plain_stream(prompt, Sampling(seed=1), tokens=1)
                seconds = asyncio.get_running_loop().time() - began_s
            return seconds

    line_s = 1000 * TOKEN_BYTES * 8 / (1e6 * mbit)
    assert run_virtual(run()) < more * line_s + 0.2
