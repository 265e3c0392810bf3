"""A simulated learner: recorded versions go live by the real rules, in idle virtual time alone."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

import pytest

from cosine_lab.emulation.trace_engine import TraceDrafter
from cosine_lab.emulation.traces import Trace, TraceSet
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.learners import (
    ROUND_S,
    ROUND_S_PER_TOKEN,
    LearningCurve,
    SimulatedLearner,
    hits_along,
    learned_tokens,
    learning_traces,
    version_name,
)
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_lab.simulation.workload import curve_of
from cosine_node.drafter.observer import NO_GUESS
from cosine_node.drafter.service import DrafterService
from cosine_node.engine.base import Engine
from cosine_node.learning.decision import HELD_OUT_TOKENS, NEW_TOKENS
from cosine_node.learning.stream_store import ALWAYS_TOKENS, is_held_out
from cosine_node.learning.streams import VerifiedStream
from cosine_node.zoo.family import Family
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling

TRACES = learning_traces(Family.TOY)


def engine_of(name: str) -> Engine:
    return TraceDrafter(TRACES, f"draft-{name}")


def curve() -> LearningCurve:
    return LearningCurve(traces=TRACES, domain="math", engine_of=engine_of)


def test_the_shipped_version_has_the_drafters_own_name() -> None:
    assert (version_name("draft-math", 0), version_name("draft-math", 2000)) == ("draft-math", "draft-math+2000")


def test_who_learns_is_told_by_the_names_of_versions() -> None:
    assert learned_tokens(TRACES, "draft-math") == (0, 2000, 5000, 10_000, 20_000)
    assert learned_tokens(TRACES, "draft-code") == (0,)


def test_where_nobody_learns_nothing_is_found() -> None:
    shipped = TraceSet.load_shipped()
    with pytest.raises(UsageError, match="know no drafter draft-history"):
        learned_tokens(shipped, "draft-history")


@pytest.mark.parametrize(
    ("tokens", "version"), [(0, 0), (1999, 0), (2000, 2000), (4999, 2000), (5000, 5000), (10**6, 20_000)]
)
def test_between_recorded_versions_the_one_below_counts(tokens: int, version: int) -> None:
    assert curve().version(tokens) == version


def test_acceptance_is_counted_along_the_traces_of_the_prompts() -> None:
    first, second = list(TRACES)[:2]
    found = curve().acceptance(2000, [first.prompt(), second.prompt(), first.prompt()])
    assert found.tokens == 2 * len(first.stream) + len(second.stream)
    assert found.right == sum(hits_along(trace, "draft-math+2000") for trace in (first, second, first))


def test_an_engine_answers_as_its_version_was_recorded() -> None:
    trace = max(TRACES, key=lambda one: hits_along(one, "draft-math+20000") - hits_along(one, "draft-math"))
    for version in (0, 20_000):
        script = curve().engine(version).script(trace)  # type: ignore[attr-defined]
        right = sum(choice.token == token for choice, token in zip(script.choices, trace.stream, strict=True))
        assert right == hits_along(trace, version_name("draft-math", version))


TRACES = learning_traces(Family.TOY)
SAMPLING = Sampling()
CLIENTS = 8
LONG_S = 600.0
"""More than any round takes."""


def texts(domain: str, tokens: int, *, clients: int = CLIENTS) -> list[VerifiedStream]:
    """Texts of a domain to learn from, of clients in turn, and enough held-out ones beside."""
    found: list[VerifiedStream] = []
    traces = TRACES.select(domains=(domain,))
    for number in count():
        sizes = {held: sum(len(s.tokens) for s in found if is_held_out(s.tokens) == held) for held in (True, False)}
        if sizes[False] >= tokens and sizes[True] >= HELD_OUT_TOKENS:
            break
        found.append(text(traces[number % len(traces)], f"client {number % clients}"))
    return found


def text(trace: Trace, client: str) -> VerifiedStream:
    guesses = (NO_GUESS,) * len(trace.stream)
    return VerifiedStream(
        client=client, sampling=SAMPLING, prompt=trace.prompt(), tokens=trace.stream, guesses=guesses, failed=()
    )


def learned_after(
    streams: Sequence[VerifiedStream],
    then: Callable[[SimulatedLearner, DrafterService], Awaitable[None]] | None = None,
) -> SimulatedLearner:
    """A learner of a drafter that nobody asks, long after it was given these streams."""

    async def run() -> SimulatedLearner:
        curve = curve_of(TRACES, "math", engine_of)
        assert curve is not None
        learner = SimulatedLearner(curve)
        async with SimulatedSwarm() as swarm:
            member = await swarm.drafter(learner.engine, keep_stream=learner.keep)
            assert isinstance(member.service, DrafterService)
            learner.attach(member.service)
            member.tasks += (asyncio.ensure_future(learner.run()),)
            for stream in streams:
                learner.keep(stream)
            if then is not None:
                await then(learner, member.service)
            await asyncio.sleep(LONG_S)
        return learner

    return run_virtual(run())


def test_a_version_goes_live_once_enough_is_new() -> None:
    learner = learned_after(texts("literature", 2 * NEW_TOKENS))
    [switch] = learner.switches
    assert learner.version == switch.tokens == 2000
    assert switch.after.share > switch.before.share
    assert ROUND_S + 2000 * ROUND_S_PER_TOKEN < switch.at_s < LONG_S


def test_too_few_tokens_teach_nothing() -> None:
    learner = learned_after(texts("literature", NEW_TOKENS // 2))
    assert (learner.rounds, learner.version) == (0, 0)


def test_texts_of_its_own_domain_teach_a_drafter_nothing_that_was_recorded() -> None:
    learner = learned_after(texts("math", 2 * NEW_TOKENS))
    assert (learner.rounds, learner.version, learner.switches) == (1, 0, [])


def test_one_client_is_a_part_of_what_is_learned_from() -> None:
    flood = [text(TRACES.select(domains=("literature",))[number % 28], "flood") for number in range(200)]
    learner = learned_after([*texts("literature", 2 * NEW_TOKENS), *flood])
    assert learner.version == ALWAYS_TOKENS == 10_000


def test_nothing_is_learned_while_a_request_is_followed() -> None:
    async def follow(learner: SimulatedLearner, service: DrafterService) -> None:
        sequence = learner.engine.open(sampling=SAMPLING, prompt_tokens=8)
        await asyncio.sleep(LONG_S)
        assert learner.rounds == 0
        learner.engine.release(sequence)

    learner = learned_after(texts("literature", 2 * NEW_TOKENS), follow)
    assert learner.rounds == 1 and learner.switches[0].at_s > LONG_S


def test_what_became_of_it_is_told() -> None:
    streams = texts("literature", 2 * NEW_TOKENS)
    use = learned_after(streams).use("someone")
    assert (use.peer_id, use.domain, use.rounds) == ("someone", "math", 1)
    assert use.kept_tokens == sum(len(stream.tokens) for stream in streams)
    assert use.as_json()["switches"][0]["tokens"] == 2000
