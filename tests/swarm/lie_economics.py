"""What lies cost and bring: one client, honest verifiers, and liars that come again under a new key when found.

`python -m tests.swarm.lie_economics` prints a table: for numbers of honest and of colluding verifiers and shares of
audited texts, the share of texts that reached the client wrong, and how much longer all verifiers computed than
without any audit. Time is virtual. Liars write with another model, say so of nobody of their own, accuse the honest
ones when they are asked to judge, and are twice as fast. With `shared` it prints what becomes of that where all
liars are in one address range, or are heads over one stage.
"""

import argparse
import logging
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Final

from cosine_lab.emulation.scripted_engine import Logits, ScriptedEngine, scripted_logits
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.stages import Ring, even_parts
from cosine_lab.simulation.swarm import VERIFY_CURVE, Member, SimulatedSwarm, numbered_identity
from cosine_node.engine.curve import CostCurve
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.request import Sampling
from tests.swarm.reference import VOCAB_TOKENS, plain_stream, prompt_of, target_engine

TOKENS: Final = 40
"""One part that is signed on the way, and one at the end."""
FAST: Final = CostCurve(tuple((tokens, 0.5 * seconds) for tokens, seconds in VERIFY_CURVE.points))
OTHER_MODEL: Final = 99
LIAR_NUMBERS: Final = 50_000
HONEST_NUMBERS: Final = 60_000
OWN_RANGES: Final = "/ip4/5.6.{}.1/tcp/4001"
ONE_RANGE: Final = "/ip4/6.7.8.9/tcp/4001"


class PatientLiar(ScriptedEngine):
    """Is right in its first `right_texts`, whoever they are for, and then writes and judges by another model."""

    def __init__(self, *, right_texts: int = 0, numerics: str | None = None, context_tokens: int = 4096) -> None:
        super().__init__(vocab_tokens=VOCAB_TOKENS, context_tokens=context_tokens)
        self._left = right_texts
        if numerics is not None:
            self._numerics = numerics

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        self._left -= 1
        return super().open(sampling=sampling, prompt_tokens=prompt_tokens, scope=scope)

    def logits_after(self, tail: Any) -> Logits:
        if self._left >= 0:
            return super().logits_after(tail)
        return scripted_logits(model_seed=OTHER_MODEL, vocab_tokens=VOCAB_TOKENS, tail=tuple(tail)[-3:])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a client was given: texts in all, wrong ones, refused ones; the liars' keys, and honest verifiers that
    it holds to be liars; seconds that all machines computed.
    """

    texts: int
    wrong: int
    refused: int
    keys: int
    honest_convicted: int
    busy_s: float


class Shared(StrEnum):
    """What all liars have in common."""

    NOTHING = "nothing"
    RANGE = "one range"
    STAGE = "one stage"


async def ring_of(swarm: SimulatedSwarm, make_liar: Callable[[], ScriptedEngine]) -> Ring:
    """Two stages, of which the last lies."""
    first, last = even_parts(2)
    stages = [await swarm.stage(first, target_engine, curve=FAST), await swarm.stage(last, make_liar, curve=FAST)]
    return Ring(stages=stages, traversal_s=FAST.seconds(1))


async def honest_one(swarm: SimulatedSwarm, engine: ScriptedEngine, number: int, shared: Shared) -> str:
    """An honest verifier, in an address range of its own where liars share one."""
    identity = None
    if shared is Shared.RANGE:
        identity = numbered_identity(HONEST_NUMBERS + number)
        swarm.network.addresses[identity.peer_id] = OWN_RANGES.format(number)
    return (await swarm.verifier(engine, identity=identity)).identity.peer_id


def outcome(
    *,
    honest: int,
    liars: int,
    texts: int,
    make_liar: Callable[[], ScriptedEngine] = PatientLiar,
    make_honest: Callable[[], ScriptedEngine] = target_engine,
    shared: Shared = Shared.NOTHING,
    seed: int = 0,
    **options: Any,
) -> Outcome:
    """Let one client ask for texts, one after the other; liars it has found wrong come again under a new key."""

    async def run() -> Outcome:
        async with SimulatedSwarm() as swarm:
            present: dict[str, Member] = {}
            keys = 0
            ring = await ring_of(swarm, make_liar) if shared is Shared.STAGE else None

            async def liar() -> None:
                nonlocal keys
                keys += 1
                identity = numbered_identity(LIAR_NUMBERS + keys)
                if shared is Shared.RANGE:
                    swarm.network.addresses[identity.peer_id] = ONE_RANGE
                engine = make_liar() if ring is None else target_engine()
                verifier = await swarm.verifier(engine, identity=identity, curve=FAST, ring=ring)
                present[identity.peer_id] = verifier

            right = {await honest_one(swarm, make_honest(), number, shared) for number in range(honest)}
            for _ in range(liars):
                await liar()
            client = await swarm.client(strategy="plain", identity=numbered_identity(40_000 + seed), **options)
            rng, wrong, refused = random.Random(seed), 0, 0
            for number in range(texts):
                prompt = prompt_of(rng)
                try:
                    under_way = await client.start(prompt, max_new_tokens=TOKENS, seed=number)
                    async for _ in under_way.chunks():
                        pass
                    await under_way.audited()
                except GenerationFailed:
                    refused += 1
                    continue
                done = under_way.result().token_ids
                wrong += done != plain_stream(prompt, Sampling(seed=number), tokens=len(done))
                for found in client.convicted & present.keys():
                    await present.pop(found).kill()
                    await liar()
            busy_s = sum(member.machine.use.busy_s for member in swarm.members)
            return Outcome(texts, wrong, refused, keys, len(client.convicted & right), busy_s)

    return run_virtual(run())


def measure_shared(texts: int) -> None:
    """Print the table of liars that share something."""
    sys.stdout.write("| honest | liars | they share | wrong | refused | keys | honest convicted |\n")
    sys.stdout.write("|--:|--:|---|--:|--:|--:|--:|\n")
    for honest, liars, shared in (
        (5, 20, Shared.NOTHING),
        (5, 20, Shared.RANGE),
        (2, 4, Shared.RANGE),
        (2, 4, Shared.STAGE),
        (2, 2, Shared.STAGE),
    ):
        found = outcome(honest=honest, liars=liars, texts=texts, shared=shared, audit=0.05)
        wrong, refused = found.wrong / texts, found.refused / texts
        row = f"| {honest} | {liars} | {shared} | {wrong:.2%} | {refused:.2%} | {found.keys} |"
        sys.stdout.write(f"{row} {found.honest_convicted} |\n")
        sys.stdout.flush()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What lies cost and bring.")
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("what", nargs="?", choices=("alone", "shared"), default="alone")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    if given.what == "shared":
        measure_shared(given.texts)
        return
    honest_s = {
        honest: outcome(honest=honest, liars=0, texts=given.texts, audit=0.0).busy_s for honest in (2, 5, 20)
    }
    sys.stdout.write("| honest | liars | audited | right first | wrong | refused | keys | computing more |\n")
    sys.stdout.write("|--:|--:|--:|--:|--:|--:|--:|--:|\n")
    for honest, liars, right_texts, audit in (
        (5, 0, 0, 0.05),
        *((honest, liars, 0, 0.05) for honest, liars in ((2, 1), (5, 4), (20, 19))),
        *((5, 4, 0, audit) for audit in (0.01, 0.25)),
        *((5, 4, right_texts, 0.05) for right_texts in (10, 50)),
        *((honest, liars, 0, 0.05) for honest, liars in ((2, 4), (5, 20))),
    ):
        runs = [
            outcome(
                honest=honest,
                liars=liars,
                texts=given.texts,
                make_liar=partial(PatientLiar, right_texts=right_texts),
                seed=seed,
                audit=audit,
            )
            for seed in range(given.seeds)
        ]
        texts = sum(each.texts for each in runs)
        more = sum(each.busy_s for each in runs) / len(runs) / honest_s[honest] - 1
        wrong, refused = (
            sum(counts) / texts for counts in zip(*((run.wrong, run.refused) for run in runs), strict=True)
        )
        keys = sum(run.keys for run in runs) / len(runs)
        given_for = f"| {honest} | {liars} | {audit:.0%} | {right_texts} "
        sys.stdout.write(f"{given_for}| {wrong:.2%} | {refused:.2%} | {keys:.0f} | {more:+.1%} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
