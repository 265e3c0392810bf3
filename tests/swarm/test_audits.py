"""Verifiers that commit what their target does not choose: found by others, kept as evidence, asked last."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_lab.emulation.scripted_engine import Logits, ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_node.engine.base import Choice
from cosine_node.engine.tree import SequenceTree
from cosine_node.verifier.request import SCORED_TOKENS
from cosine_p2p.request.results import Generation
from cosine_p2p.session.auditing import TextAccused
from cosine_p2p.trust.audit_rule import AuditState
from cosine_p2p.trust.evidence import EvidenceFile
from cosine_protocol.request import Sampling
from tests.swarm.reference import (
    VOCAB_TOKENS,
    StallingRunner,
    assert_freed,
    audited,
    heard,
    in_a_swarm,
    plain_stream,
    preferred,
    prompt_of,
    slower,
    target_engine,
)
from tests.thoroughness import quick_first

TOKENS: Final = 200
PROMPT: Final = prompt_of(random.Random("audits"))
SUSPECT: Final = numbered_identity(9200)
NEXT: Final = numbered_identity(9201)
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


def texts_of(
    suspect: ScriptedEngine, *others: ScriptedEngine, file: Path | None = None, **options: Any
) -> list[Generation]:
    """Two audited texts. A suspect is asked for the first, in a swarm with others."""

    async def run() -> list[Generation]:
        async with SimulatedSwarm() as swarm:
            evidence = {"evidence_file": EvidenceFile(file)} if file is not None else {}
            sampled = {"temperature": SAMPLED.temperature, "seed": SAMPLED.seed}
            given = sampled | evidence | options
            client = await preferred(swarm, suspect, *others, prompt=PROMPT, identity=SUSPECT, client=given)
            done = [await audited(client, PROMPT, max_new_tokens=TOKENS) for _ in range(2)]
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
    first, second = texts_of(LIES[lie](), target_engine(), target_engine(), file=file)
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
    for done in texts_of(*engines, file=file):
        # Neither loses its place, nor its voice: an accusation costs nothing to make.
        assert authors(done) == [SUSPECT.peer_id] and state_of(done) is AuditState.SUSPECTED
    assert len(EvidenceFile(file).read()) == 2 and not EvidenceFile(file).convicted()


@pytest.mark.parametrize("number", quick_first(range(9300, 9304)))
def test_an_auditor_that_lies_convicts_nobody_where_another_is_honest(number: int) -> None:
    first, second = texts_of(target_engine(), other_model(), target_engine(), identity=numbered_identity(number))
    assert state_of(first) in (AuditState.PASSED, AuditState.DISPUTED)
    assert authors(first) == authors(second) == [SUSPECT.peer_id]


def test_who_is_alone_or_the_only_one_the_user_wants_is_audited_by_nobody() -> None:
    first, _ = texts_of(target_engine())
    assert state_of(first) is AuditState.NO_AUDITOR
    first, _ = texts_of(other_model(), target_engine(), target_engine(), verifier=SUSPECT.peer_id)
    assert state_of(first) is AuditState.NO_AUDITOR


SAMPLINGS: Final[dict[str, dict[str, Any]]] = {
    "sampled": {"temperature": 1.0},
    "greedy": {"temperature": 0.0},
    "filtered": {"temperature": 0.7, "top_p": 0.9, "top_k": 12, "min_p": 0.02, "repetition_penalty": 1.1},
}


@pytest.mark.parametrize("sampling", quick_first(SAMPLINGS))
@pytest.mark.parametrize("strategy", quick_first(["cosine", "plain"]))
@in_a_swarm
async def test_honest_verifiers_are_never_accused(swarm: SimulatedSwarm, strategy: str, sampling: str) -> None:
    for _ in range(3):
        await swarm.verifier(target_engine())
    client = await swarm.client(strategy=strategy, audit=1.0, **SAMPLINGS[sampling])
    for number in range(6):
        prompt = prompt_of(random.Random(number), tokens=1 + 7 * number)
        done = await audited(client, prompt, max_new_tokens=30 * (number + 1), seed=number)
        assert state_of(done) is AuditState.PASSED
    await assert_freed(swarm)


def continued(
    first: Callable[[], ScriptedEngine], second: Callable[[], ScriptedEngine], *, is_accused: bool
) -> list[Generation]:
    """Two texts. In the first the suspect stops after 60 passes, and another verifier continues or accuses it."""

    async def run() -> list[Generation]:
        async with SimulatedSwarm() as swarm:
            engine = first()
            runner = StallingRunner(engine, passes=60)
            client = await preferred(swarm, engine, prompt=PROMPT, identity=SUSPECT, client={}, runner=runner)
            await swarm.verifier(second(), identity=NEXT, curve=slower(1.3))
            for _ in range(2):
                await swarm.verifier(target_engine(), curve=slower(2.0))
            run = await client.start(PROMPT, max_new_tokens=TOKENS)
            if is_accused:
                with pytest.raises(TextAccused, match=SUSPECT.peer_id):
                    await heard(run)
            else:
                await heard(run)
            await run.audited()
            return [run.result(), await client.generate(PROMPT, max_new_tokens=TOKENS, audit=0.0)]

    done = run_virtual(run())
    assert done[1].token_ids == plain_stream(PROMPT, Sampling(), tokens=TOKENS)
    return done


def test_each_part_of_a_text_that_another_verifier_continued_is_audited_alone() -> None:
    """The first verifier is honest and stops, the second one lies later: only the second is convicted."""
    done, _ = continued(target_engine, LIES["lies once in 200 tokens"], is_accused=False)
    assert authors(done) == [SUSPECT.peer_id, NEXT.peer_id] and done.audit is not None
    honest, lied = (piece.open() for piece in done.audit.evidence)
    assert (honest.claim.author, honest.state) == (SUSPECT.peer_id, AuditState.PASSED)
    assert lied.state is done.audit.state is AuditState.CONVICTED


def test_nobody_continues_what_one_wrote_who_lies_and_falls_silent() -> None:
    lied, later = continued(other_model, target_engine, is_accused=True)
    # Nothing was shown that came after the lie.
    assert authors(lied)[0] == SUSPECT.peer_id and lied.tokens < TOKENS // 2
    assert lied.audit is not None
    convicted, *_ = (piece.open() for piece in lied.audit.evidence)
    assert (convicted.claim.author, convicted.state) == (SUSPECT.peer_id, AuditState.CONVICTED)
    assert SUSPECT.peer_id not in authors(later)


def test_who_accuses_an_honest_one_in_order_to_continue_is_asked_last() -> None:
    stopped, later = continued(target_engine, other_model, is_accused=True)
    assert stopped.token_ids == plain_stream(PROMPT, Sampling(), tokens=TOKENS)[: stopped.tokens]
    assert stopped.audit is not None and stopped.audit.evidence[0].open().state is AuditState.PASSED
    assert not {SUSPECT.peer_id, NEXT.peer_id} & {*authors(later)}


@in_a_swarm
async def test_without_audits_nobody_compares_verifiers(swarm: SimulatedSwarm) -> None:
    liar = other_model()
    runner = StallingRunner(liar, passes=60)
    client = await preferred(swarm, liar, target_engine(), prompt=PROMPT, client={"audit": 0.0}, runner=runner)
    assert len(authors(await client.generate(PROMPT, max_new_tokens=TOKENS))) == 2


@in_a_swarm
async def test_an_audit_costs_an_auditor_a_prefill(swarm: SimulatedSwarm) -> None:
    """One verifier writes 200 tokens in as many passes. Another one reads them in four of at most 64."""
    client = await preferred(swarm, target_engine(), target_engine(), prompt=PROMPT, identity=SUSPECT, client={})
    assert authors(await audited(client, PROMPT, max_new_tokens=TOKENS)) == [SUSPECT.peer_id]
    use = swarm.members[-1].machine.use
    assert use.tokens == len(PROMPT) + TOKENS - 1
    assert use.passes <= 1 + -(-TOKENS // SCORED_TOKENS)
