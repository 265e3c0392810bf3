"""Measures how much of one peer a busy node reads a second: `python -m tests.swarm.measure_reads`."""

import asyncio
import random
import sys
from collections import defaultdict
from itertools import product
from typing import Final

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.engine.curve import CostCurve
from cosine_p2p.transport.channel import READ_PLACES, READ_RATE
from cosine_p2p.trust.call_budget import CallBudget
from tests.swarm.reference import draft_engine, prompt_of, target_engine

TOKENS: Final = 150
DRAFTERS: Final = 3
MACHINES: Final = ((0.060, 0.006), (0.010, 0.001))
"""Seconds of a pass of the verifier and of a drafter: emulated home machines, and six times as fast ones."""

REQUESTS: Final = (READ_PLACES, 2 * READ_PLACES)


def curve(pass_s: float) -> CostCurve:
    """The shape of the simulator's verifier, with passes of so many seconds."""
    return CostCurve(((1, pass_s), (4, pass_s), (8, 1.1 * pass_s), (16, 1.35 * pass_s), (32, 1.9 * pass_s)))


def most_units(pass_s: float, draft_s: float, coordination: str, *, requests: int = READ_PLACES) -> float:
    """The most units of one peer in any second, of a client with as many requests as there are places.

    Where more is read of a peer because these are many, its units count for less.
    """
    units: defaultdict[tuple[int, str, int], float] = defaultdict(float)
    owe = CallBudget.owe

    def counted(budget: CallBudget, peer_id: str, of_one: float, *, now_s: float) -> float:
        units[id(budget), peer_id, int(now_s)] += of_one * READ_RATE / budget._peer_rate
        return owe(budget, peer_id, of_one, now_s=now_s)

    async def run() -> None:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(target_engine(), curve=curve(pass_s), max_requests=requests)
            for _ in range(DRAFTERS):
                await swarm.drafter(draft_engine(0.9), curve=curve(draft_s), max_requests=requests)
            client = await swarm.client(timeout_s=60.0, seed=0, coordination=coordination)
            rng = random.Random(1)
            prompts = [prompt_of(rng) for _ in range(requests)]
            await asyncio.gather(*(client.generate(prompt, max_new_tokens=TOKENS) for prompt in prompts))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CallBudget, "owe", counted)
        run_virtual(run())
    return max(units.values())


def main() -> None:
    """Measure all."""
    for requests, (pass_s, draft_s), coordination in product(REQUESTS, MACHINES, ("client", "verifier")):
        found = most_units(pass_s, draft_s, coordination, requests=requests)
        times = f"{1e3 * pass_s:g} ms a pass, {1e3 * draft_s:g} ms a drafter's, coordination by the {coordination}"
        sys.stdout.write(f"{requests} requests, {times}: {found:.0f} units of one peer in a second at most\n")
    sys.stdout.write(f"{READ_RATE:.0f} are read\n")


if __name__ == "__main__":
    main()
