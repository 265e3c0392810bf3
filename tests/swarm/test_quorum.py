"""Several verifiers agree before a text is shown: none is wrong where one of them is honest."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.request import Sampling
from tests.swarm.reference import VOCAB_TOKENS, assert_freed, plain_stream, prompt_of, target_engine
from tests.swarm.test_audits import SLOWER, LyingEngine, other_model
from tests.thoroughness import quick_first

TOKENS: Final = 200
PROMPT: Final = prompt_of(random.Random("quorum"), tokens=60)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was shown, how the generation failed if it did, and the virtual seconds until text came and ended; the
    seconds that all verifiers computed, and those that the client holds to be liars."""

    shown: tuple[int, ...]
    error: str
    first_s: float
    seconds: float
    busy_s: float
    convicted: frozenset[str]
    verifiers: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        """True if nothing was shown that the target would not have written."""
        return self.shown == plain_stream(PROMPT, Sampling(), tokens=TOKENS)[: len(self.shown)]


def outcome(
    first: ScriptedEngine,
    *others: ScriptedEngine,
    addresses: Sequence[str] = (),
    drafters: int = 0,
    again: int = 0,
    **options: Any,
) -> Outcome:
    """A text for which the first verifier is asked first; where it is asked for again, what came last."""

    async def run() -> Outcome:
        async with SimulatedSwarm() as swarm:
            engines = (first, *others)
            identities = [numbered_identity(9400 + number) for number in range(len(engines))]
            for identity, address in zip(identities, addresses, strict=False):
                swarm.network.addresses[identity.peer_id] = address
            await swarm.verifier(first, identity=identities[0])
            client = await swarm.client(**({"strategy": "cosine" if drafters else "plain"} | options))
            # Alone it is measured, and then preferred to strangers.
            await client.generate(PROMPT, max_new_tokens=10, quorum=1)
            for identity, engine in zip(identities[1:], others, strict=True):
                await swarm.verifier(engine, identity=identity, curve=SLOWER)
            for number in range(drafters):
                drafter = ScriptedEngine(vocab_tokens=VOCAB_TOKENS, fidelity=0.8, drafter_seed=number)
                await swarm.drafter(drafter, domain=f"domain {number}")
            for _ in range(again + 1):
                run, error = await client.start(PROMPT, max_new_tokens=TOKENS), ""
                shown: list[int] = []
                try:
                    async for chunk in run.chunks():
                        shown += chunk.token_ids
                except GenerationFailed as failed:
                    error = str(failed)
            done = run.result()
            busy_s = sum(member.machine.use.busy_s for member in swarm.members)
            await assert_freed(swarm)
            peers = tuple(identity.peer_id for identity in identities)
            times = done.time_to_first_token_s, done.seconds
            return Outcome(tuple(shown), error, *times, busy_s, client.convicted, peers)

    return run_virtual(run())


@pytest.mark.parametrize("size", quick_first([2, 3]))
@pytest.mark.parametrize("drafters", quick_first([0, 2]))
def test_a_text_on_which_all_agree_is_shown_whole(drafters: int, size: int) -> None:
    found = outcome(*(target_engine() for _ in range(4)), drafters=drafters, quorum=size)
    assert (found.error, len(found.shown), found.is_right) == ("", TOKENS, True)
    assert not found.convicted


LIES: Final[dict[str, Callable[[], ScriptedEngine]]] = {
    "another model": other_model,
    "one lie": lambda: LyingEngine(vocab_tokens=VOCAB_TOKENS),
}


@pytest.mark.parametrize("lie", quick_first(LIES, quick=2))
def test_of_a_writer_that_lies_nothing_wrong_is_shown(lie: str) -> None:
    found = outcome(LIES[lie](), target_engine(), target_engine(), quorum=2)
    assert found.is_right and "nothing of it was shown" in found.error
    assert found.convicted == {found.verifiers[0]}
    # Whoever asks again is given the whole text by another.
    found = outcome(LIES[lie](), target_engine(), target_engine(), quorum=2, again=1)
    assert (found.error, len(found.shown), found.is_right) == ("", TOKENS, True)


def test_of_two_that_differ_nobody_is_believed() -> None:
    for engines in ((other_model(), target_engine()), (target_engine(), other_model())):
        found = outcome(*engines, quorum=2)
        assert (found.shown, found.convicted) == ((), frozenset())
        assert "0 agree" in found.error


def test_a_judge_that_lies_is_outvoted_and_the_text_goes_on() -> None:
    liar = other_model()
    found = outcome(target_engine(), liar, target_engine(), target_engine(), target_engine(), quorum=3)
    assert (found.error, len(found.shown), found.is_right) == ("", TOKENS, True)


def test_too_few_that_may_agree_show_nothing() -> None:
    found = outcome(target_engine(), target_engine(), quorum=3)
    assert (found.shown, "only 1 agreed" in found.error) == ((), True)


def test_verifiers_of_one_address_range_are_one() -> None:
    own, other = "/ip4/5.7.8.{}/tcp/4001", "/ip4/5.6.7.1/tcp/4001"
    engines = [other_model(), other_model(), other_model()]
    addresses = [own.format(1), own.format(2), other]
    found = outcome(*engines[:2], target_engine(), addresses=addresses, quorum=2)
    assert not found.shown and found.error


def test_a_quorum_costs_less_than_writing_each_text_again() -> None:
    alone, two, three = (outcome(*(target_engine() for _ in range(4)), quorum=size) for size in (1, 2, 3))
    assert alone.busy_s < two.busy_s < three.busy_s < 2 * alone.busy_s
    assert two.seconds < 1.5 * alone.seconds
