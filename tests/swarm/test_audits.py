"""Verifiers that commit what their target does not choose: found by others, kept as evidence, asked last."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_lab.emulation.scripted_engine import Logits, ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import VERIFY_CURVE, SimulatedSwarm, numbered_identity
from cosine_node.engine.base import Choice
from cosine_node.engine.curve import CostCurve
from cosine_node.engine.tree import SequenceTree
from cosine_node.verifier.request import SCORED_TOKENS
from cosine_p2p.request.results import Generation
from cosine_p2p.session.auditing import TextAccused
from cosine_p2p.trust.audit_rule import AuditState
from cosine_p2p.trust.evidence import EvidenceFile
from cosine_protocol.request import Sampling
from tests.swarm.reference import VOCAB_TOKENS, assert_freed, plain_stream, prompt_of, target_engine
from tests.swarm.test_faults import StallingRunner
from tests.thoroughness import quick_first

TOKENS: Final = 200
PROMPT: Final = prompt_of(random.Random("audits"))
SUSPECT: Final = numbered_identity(9200)
NEXT: Final = numbered_identity(9201)
SLOWER: Final = CostCurve(tuple((tokens, 1.3 * seconds) for tokens, seconds in VERIFY_CURVE.points))
"""So slow that nobody expects it to be faster than the suspect."""
SLOWEST: Final = CostCurve(tuple((tokens, 2.0 * seconds) for tokens, seconds in VERIFY_CURVE.points))
SAMPLED: Final = Sampling(temperature=0.8, seed=7)


class LyingEngine(ScriptedEngine):
    """Chooses another token at one output position of every 200."""

    def _choice(self, tree: SequenceTree, name: int, candidates: int) -> Choice:
        choice = super()._choice(tree, name, candidates)
        position = tree.nodes[name].index + 1 - tree.prompt_tokens
        return replace(choice, token=(choice.token + 1) % VOCAB_TOKENS) if position % TOKENS == 77 else choice


class OtherSeedEngine(ScriptedEngine):
    """Draws the noise from another seed than the request's."""

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        return super().open(
            sampling=replace(sampling, seed=sampling.seed + 1), prompt_tokens=prompt_tokens, scope=scope
        )


class FewBitsEngine(ScriptedEngine):
    """Knows its logits in sixteen steps only, and calls itself as the whole one does."""

    def logits_after(self, tail: Sequence[int]) -> Logits:
        return tuple(round(2 * logit) / 2 for logit in super().logits_after(tail))


def other_model() -> ScriptedEngine:
    return ScriptedEngine(vocab_tokens=VOCAB_TOKENS, model_seed=99)


LIES: Final[dict[str, Callable[[], ScriptedEngine]]] = {
    "lies once in 200 tokens": lambda: LyingEngine(vocab_tokens=VOCAB_TOKENS),
    "another seed": lambda: OtherSeedEngine(vocab_tokens=VOCAB_TOKENS),
    "few bits": lambda: FewBitsEngine(vocab_tokens=VOCAB_TOKENS),
    "another model": other_model,
}


def audited(
    suspect: ScriptedEngine,
    *others: ScriptedEngine,
    strategy: str = "plain",
    file: Path | None = None,
    **options: Any,
) -> list[Generation]:
    """Two generations that a suspect is asked for first, in a swarm with others; the first one is audited."""

    async def run() -> list[Generation]:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(suspect, identity=SUSPECT)
            client = await swarm.client(
                strategy=strategy,
                audit=1.0,
                temperature=SAMPLED.temperature,
                seed=SAMPLED.seed,
                evidence_file=EvidenceFile(file) if file is not None else None,
                **options,
            )
            # Alone it is measured, and then preferred to strangers.
            await client.generate(PROMPT, max_new_tokens=10, audit=0.0)
            for engine in others:
                await swarm.verifier(engine, curve=SLOWER)
            done = []
            for _ in range(2):
                run = await client.start(PROMPT, max_new_tokens=TOKENS)
                async for _ in run.chunks():
                    pass
                await run.audited()
                done.append(run.result())
            await assert_freed(swarm)
            return done

    return run_virtual(run())


def state_of(generation: Generation) -> AuditState:
    assert generation.audit is not None
    return generation.audit.state


def authors(generation: Generation) -> list[str]:
    return [verifier.peer_id for verifier in generation.verifiers]


@pytest.mark.parametrize("lie", LIES)
def test_a_verifier_that_lies_is_convicted_by_two_others_and_asked_last(lie: str, tmp_path: Path) -> None:
    file = tmp_path / "evidence.json"
    first, second = audited(LIES[lie](), target_engine(), target_engine(), file=file)
    assert authors(first) == [SUSPECT.peer_id] and state_of(first) is AuditState.CONVICTED
    assert authors(second) != [SUSPECT.peer_id] and state_of(second) is AuditState.PASSED
    assert second.token_ids == plain_stream(PROMPT, SAMPLED, tokens=TOKENS)
    # Whoever has the file can check it, and the next run of the client knows.
    [kept] = EvidenceFile(file).read()
    assert first.audit is not None and kept == first.audit.evidence[0]
    assert len(kept.open().verdicts) == 2
    assert EvidenceFile(file).convicted() == {SUSPECT.peer_id}


@pytest.mark.parametrize("lies", [True, False], ids=["the author lies", "the auditor lies"])
def test_where_one_accuses_the_only_other_one_nobody_can_tell_who_lies(lies: bool, tmp_path: Path) -> None:
    file = tmp_path / "evidence.json"
    engines = (other_model(), target_engine()) if lies else (target_engine(), other_model())
    for done in audited(*engines, file=file):
        # Neither loses its place, nor its voice: an accusation costs nothing to make.
        assert authors(done) == [SUSPECT.peer_id] and state_of(done) is AuditState.SUSPECTED
    assert len(EvidenceFile(file).read()) == 2 and not EvidenceFile(file).convicted()


@pytest.mark.parametrize("number", quick_first(range(9300, 9320), 2, checked=4))
def test_an_auditor_that_lies_convicts_nobody_where_another_is_honest(number: int) -> None:
    first, second = audited(target_engine(), other_model(), target_engine(), identity=numbered_identity(number))
    assert state_of(first) in (AuditState.PASSED, AuditState.DISPUTED)
    assert authors(first) == authors(second) == [SUSPECT.peer_id]


def test_who_is_alone_is_audited_by_nobody() -> None:
    first, _ = audited(target_engine())
    assert state_of(first) is AuditState.NO_AUDITOR


def test_where_the_user_wants_one_verifier_no_other_one_sees_the_text() -> None:
    first, _ = audited(other_model(), target_engine(), target_engine(), verifier=SUSPECT.peer_id)
    assert state_of(first) is AuditState.NO_AUDITOR


SAMPLINGS: Final[dict[str, dict[str, Any]]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0},
    "filtered": {"temperature": 0.7, "top_p": 0.9, "top_k": 12, "min_p": 0.02, "repetition_penalty": 1.1},
}


@pytest.mark.parametrize("sampling", quick_first(SAMPLINGS))
@pytest.mark.parametrize("strategy", quick_first(["plain", "cosine"]))
def test_honest_verifiers_are_never_accused(strategy: str, sampling: str) -> None:
    async def run() -> list[Generation]:
        async with SimulatedSwarm() as swarm:
            for _ in range(3):
                await swarm.verifier(target_engine())
            client = await swarm.client(strategy=strategy, audit=1.0, **SAMPLINGS[sampling])
            done = []
            for number in range(8):
                prompt = prompt_of(random.Random(number), tokens=1 + 7 * number)
                run = await client.start(prompt, max_new_tokens=40 * (number + 1), seed=number)
                async for _ in run.chunks():
                    pass
                await run.audited()
                done.append(run.result())
            await assert_freed(swarm)
            return done

    generations = run_virtual(run())
    assert {state_of(generation) for generation in generations} == {AuditState.PASSED}


def test_each_part_of_a_stream_that_went_on_elsewhere_is_audited_alone() -> None:
    """The first verifier is honest and stops, the second one lies later: only the second is convicted."""

    async def run() -> Generation:
        async with SimulatedSwarm() as swarm:
            engine = target_engine()
            await swarm.verifier(engine, identity=SUSPECT, runner=StallingRunner(engine, passes=60))
            client = await swarm.client(strategy="plain", audit=1.0)
            await client.generate(PROMPT, max_new_tokens=10, audit=0.0)
            liar = await swarm.verifier(LyingEngine(vocab_tokens=VOCAB_TOKENS), curve=SLOWER)
            for _ in range(2):
                await swarm.verifier(target_engine(), curve=SLOWEST)
            run = await client.start(PROMPT, max_new_tokens=TOKENS)
            async for _ in run.chunks():
                pass
            await run.audited()
            done = run.result()
            assert authors(done) == [SUSPECT.peer_id, liar.identity.peer_id]
            return done

    done = run_virtual(run())
    assert done.audit is not None
    honest, lied = (piece.open() for piece in done.audit.evidence)
    assert (honest.claim.author, honest.state) == (SUSPECT.peer_id, AuditState.PASSED)
    assert lied.state is done.audit.state is AuditState.CONVICTED


def failed_over(first: Callable[[], ScriptedEngine], second: Callable[[], ScriptedEngine]) -> list[Generation]:
    """A refused text, that of a verifier that stops after 60 passes as another one goes on; then another text."""

    async def run() -> list[Generation]:
        async with SimulatedSwarm() as swarm:
            engine = first()
            await swarm.verifier(engine, identity=SUSPECT, runner=StallingRunner(engine, passes=60))
            client = await swarm.client(strategy="plain", audit=1.0)
            await client.generate(PROMPT, max_new_tokens=10, audit=0.0)
            await swarm.verifier(second(), identity=NEXT, curve=SLOWER)
            for _ in range(2):
                await swarm.verifier(target_engine(), curve=SLOWEST)
            run = await client.start(PROMPT, max_new_tokens=TOKENS)
            with pytest.raises(TextAccused, match=SUSPECT.peer_id):
                async for _ in run.chunks():
                    pass
            await run.audited()
            later = await client.generate(PROMPT, max_new_tokens=TOKENS, audit=0.0)
            assert later.token_ids == plain_stream(PROMPT, Sampling(), tokens=TOKENS)
            return [run.result(), later]

    return run_virtual(run())


def test_nobody_continues_what_one_wrote_who_lies_and_falls_silent() -> None:
    lied, later = failed_over(other_model, target_engine)
    # Nothing was shown that came after the lie.
    assert authors(lied)[0] == SUSPECT.peer_id and lied.tokens < TOKENS // 2
    assert lied.audit is not None
    convicted, *_ = (piece.open() for piece in lied.audit.evidence)
    assert (convicted.claim.author, convicted.state) == (SUSPECT.peer_id, AuditState.CONVICTED)
    assert SUSPECT.peer_id not in authors(later)


def test_who_accuses_an_honest_one_in_order_to_go_on_is_asked_last() -> None:
    stopped, later = failed_over(target_engine, other_model)
    assert stopped.token_ids == plain_stream(PROMPT, Sampling(), tokens=TOKENS)[: stopped.tokens]
    assert stopped.audit is not None and stopped.audit.evidence[0].open().state is AuditState.PASSED
    assert not {SUSPECT.peer_id, NEXT.peer_id} & {*authors(later)}


def test_without_audits_nobody_compares_verifiers() -> None:
    async def run() -> Generation:
        async with SimulatedSwarm() as swarm:
            liar = other_model()
            await swarm.verifier(liar, identity=SUSPECT, runner=StallingRunner(liar, passes=60))
            client = await swarm.client(strategy="plain", audit=0.0)
            await client.generate(PROMPT, max_new_tokens=10)
            await swarm.verifier(target_engine(), curve=SLOWER)
            return await client.generate(PROMPT, max_new_tokens=TOKENS)

    assert len(authors(run_virtual(run()))) == 2


def test_an_audit_costs_an_auditor_a_prefill() -> None:
    """What a verifier writes in 200 passes of a token, another one reads in four of at most 64."""

    async def run() -> tuple[int, int]:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier(target_engine(), identity=SUSPECT)
            client = await swarm.client(strategy="plain", audit=1.0)
            await client.generate(PROMPT, max_new_tokens=10, audit=0.0)
            auditor = await swarm.verifier(target_engine(), curve=SLOWER)
            run = await client.start(PROMPT, max_new_tokens=TOKENS)
            async for _ in run.chunks():
                pass
            await run.audited()
            assert authors(run.result()) == [SUSPECT.peer_id]
            return auditor.machine.use.passes, auditor.machine.use.tokens

    passes, tokens = run_virtual(run())
    assert tokens == len(PROMPT) + TOKENS - 1
    assert passes <= 1 + -(-TOKENS // SCORED_TOKENS)
