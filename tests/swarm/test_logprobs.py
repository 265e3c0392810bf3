"""Tests of log-probabilities, and of verifiers that lie about them."""

import math
from dataclasses import replace
from typing import Any

import pytest

from cosine_cli.judged_texts import check
from cosine_engine.base import Row, RowResult
from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p.request.logprobs import TokenLogprob
from cosine_p2p.request.results import Generation
from cosine_p2p.trust.audit_rule import AuditState
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.verify import Likelihood
from tests.scenes import in_virtual_time
from tests.swarm import reference
from tests.swarm.reference import in_a_swarm, preferred
from tests.thoroughness import quick_first, quick_rows

PROMPT_TOKENS = (3, 9, 4, 7, 3, 9, 4, 1)
PROMPT = LetterCodec().decode(PROMPT_TOKENS)


def log_probabilities(tokens: tuple[int, ...]) -> list[float]:
    logits = ScriptedEngine().logits_after(tokens)
    total = math.log(math.fsum(math.exp(score) for score in logits))
    return [score - total for score in logits]


def generated(*fidelities: float, **options: Any) -> Generation:
    drafters = [ScriptedEngine(fidelity=each, drafter_seed=number) for number, each in enumerate(fidelities)]
    given: dict[str, Any] = {"target": ScriptedEngine, "drafters": drafters, "max_new_tokens": 40} | options
    return reference.generated(PROMPT, **given)


@pytest.mark.parametrize(
    ("strategy", "temperature"), quick_rows([("cosine", 1.0), ("plain", 0.0), ("cosine", 0.0), ("plain", 1.0)])
)
def test_they_are_those_of_the_target_alone_with_any_drafts(strategy: str, temperature: float) -> None:
    options: dict[str, Any] = {
        "strategy": strategy,
        "temperature": temperature,
        "top_k": 5,
        "presence_penalty": 1.0,
    }
    done = generated(0.8, 0.8, logprobs=3, **options)
    without = generated(0.8, 0.8, **options)
    assert (done.token_ids, without.logprobs, without.prompt_logprobs) == (without.token_ids, (), ())
    assert [each.token_id for each in done.logprobs] == list(done.token_ids)
    for position, told in enumerate(done.logprobs):
        own = log_probabilities((*PROMPT_TOKENS, *done.token_ids[:position]))
        assert told.logprob == pytest.approx(own[told.token_id], abs=1e-6)
        best = sorted(range(len(own)), key=lambda token: -own[token])[:3]
        assert [each.token_id for each in told.top] == best
        assert [each.logprob for each in told.top] == pytest.approx([own[token] for token in best], abs=1e-6)
        assert told.text == LetterCodec().decode([told.token_id]) and bytes(told.utf8).decode() == told.text


@pytest.mark.parametrize("coordination", quick_first(["verifier", "client"]))
@in_a_swarm
async def test_those_of_a_cached_prompt_come_whole(swarm: SimulatedSwarm, coordination: str) -> None:
    prompt = tuple(number % 60 for number in range(3, 203))
    await swarm.verifier()
    await swarm.drafter(ScriptedEngine(fidelity=0.8))
    client = await swarm.client(timeout_s=60.0, coordination=coordination, seed=1, max_new_tokens=10)
    await client.generate(prompt)
    done = await client.generate(prompt, prompt_logprobs=1)
    first, *others = done.prompt_logprobs
    assert (len(others), done.logprobs, done.usage.cached_tokens) == (len(prompt) - 1, (), 0)
    assert first.token_id == prompt[0] and not isinstance(first, TokenLogprob)
    for position, told in enumerate(others, 1):
        own = log_probabilities(prompt[:position])
        assert isinstance(told, TokenLogprob) and told.token_id == prompt[position] and len(told.top) == 1
        assert told.logprob == pytest.approx(own[told.token_id], abs=1e-6)
        assert told.top[0].logprob == pytest.approx(max(own), abs=1e-6)


def test_the_verifier_that_continues_a_text_tells_the_rest() -> None:
    done, alone = (generated(is_lost=lost, logprobs=2, prompt_logprobs=2) for lost in (True, False))
    assert len(done.swarm.verifiers) == 2
    assert (done.logprobs, done.prompt_logprobs) == (alone.logprobs, alone.prompt_logprobs)


def test_verifiers_without_log_probabilities_say_so() -> None:
    def silent() -> ScriptedEngine:
        engine = ScriptedEngine()
        engine.tells_likelihoods = False
        return engine

    with pytest.raises(GenerationFailed, match="log-probabilities are not available here"):
        generated(target=silent, logprobs=1)


class Boastful(ScriptedEngine):
    """An engine that reports its tokens as more probable than they are."""

    nats = 0.05
    of_prompt = False

    def forward(self, rows: Any) -> list[RowResult]:
        return [
            replace(result, likelihoods=tuple(self._told(row, result)))
            for row, result in zip(rows, super().forward(rows), strict=True)
        ]

    def _told(self, row: Row, result: RowResult) -> list[Likelihood]:
        prompt = sum(token is not None for token in row.followers)
        lied = range(prompt) if self.of_prompt else range(prompt, len(result.likelihoods))
        return [
            replace(each, surprisal=max(0, each.surprisal - round(1e6 * self.nats))) if place in lied else each
            for place, each in enumerate(result.likelihoods)
        ]


class Liar(Boastful):
    nats = -3.0


class LiarAboutPrompts(Boastful):
    of_prompt = True


@in_virtual_time
async def audited(engine: ScriptedEngine, **options: Any) -> Generation:
    async with SimulatedSwarm() as swarm:
        others = ScriptedEngine(), ScriptedEngine()
        client = await preferred(swarm, engine, *others, prompt=PROMPT, client={"seed": 7})
        return await reference.audited(client, PROMPT, max_new_tokens=40, **options)


@pytest.mark.parametrize(
    ("liar", "asked"),
    [(Boastful, {"logprobs": 0}), (Liar, {"logprobs": 0}), (LiarAboutPrompts, {"prompt_logprobs": 0})],
)
def test_a_verifier_that_lies_about_them_is_convicted(liar: type[Boastful], asked: dict[str, int]) -> None:
    done = audited(liar(), **asked)
    assert done.audit is not None and done.audit.state is AuditState.CONVICTED
    said = check(done.audit.evidence[0]).said[0]
    assert f"accuses: {done.usage.completion_tokens} equal" in said
    assert f"log-probabilities off by {abs(liar.nats):.2g} at most" in said
    unasked = audited(liar())
    assert unasked.token_ids == done.token_ids
    assert unasked.audit is not None and unasked.audit.state is AuditState.PASSED
    honest = audited(ScriptedEngine(), temperature=1.0, **asked)
    assert honest.audit is not None and honest.audit.state is AuditState.PASSED
