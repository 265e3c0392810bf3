"""Tests that constrained texts are valid, and equal to plain constrained decoding."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_engine.curve import CostCurve
from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation import workload
from cosine_lab.simulation.records import facts_of
from cosine_lab.simulation.stages import Ring, even_parts
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p.request.origins import FORCED_SOURCE, told_origins
from cosine_p2p.request.results import Generation
from cosine_protocol.errors import GenerationFailed, OptionRefused
from cosine_protocol.request import Constraint, ConstraintKind, Sampling
from tests.engine.letter_grammars import END, letter_grammars, text_of
from tests.engine.schemas import SCHEMAS, check_json
from tests.scenes import in_virtual_time
from tests.swarm import reference
from tests.thoroughness import dear_examples, quick_first, quick_rows

TOKENS = 60
VOCAB_TOKENS = END + 1
PROMPT = LetterCodec().decode([3, 9, 4, 7])
SCHEMA = (
    '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}'
)


def constrained_engine(
    fidelity: float = 1.0, seed: int = 0, *, obeys: bool = True, **options: Any
) -> ScriptedEngine:
    grammars = letter_grammars(**options) if obeys else None
    return ScriptedEngine(vocab_tokens=VOCAB_TOKENS, fidelity=fidelity, drafter_seed=seed, grammars=grammars)


def generated(*fidelities: float, lies: bool = False, **options: Any) -> Generation:
    """Generate a text. Drafters that lie ignore the grammar, which often forbids their drafts."""
    drafters = [constrained_engine(each, n, waits=False, obeys=not lies) for n, each in enumerate(fidelities)]
    scene: dict[str, Any] = {"target": constrained_engine, "drafters": drafters, "eos": (END,)}
    return reference.generated(PROMPT, max_new_tokens=TOKENS, **scene, **options)


def plain(kind: ConstraintKind, text: str, *, temperature: float = 0.0) -> tuple[int, ...]:
    """The target's own constrained text with seed 7, one token at a time."""
    sampling = Sampling(temperature=temperature, seed=7, constraint=Constraint(kind, text, (END,)))
    prompt = LetterCodec().encode(PROMPT)
    return workload.plain_stream(constrained_engine(), prompt, sampling, tokens=TOKENS, eos=(END,))


@given(
    schema=SCHEMAS,
    fidelities=st.lists(st.sampled_from([0.3, 0.8, 1.0]), max_size=2),
    lies=st.booleans(),
    temperature=st.sampled_from([0.0, 1.0]),
)
@dear_examples()
def test_with_honest_drafters_and_others_the_text_is_that_of_plain_constrained_decoding(
    schema: str, fidelities: list[float], lies: bool, temperature: float
) -> None:
    expected = plain(ConstraintKind.SCHEMA, schema, temperature=temperature)
    for strategy in ("plain", "cosine"):
        options: dict[str, Any] = {"strategy": strategy, "schema": schema, "temperature": temperature}
        done = generated(*fidelities, lies=lies, **options)
        assert done.token_ids == expected
        if done.finish_reason == "stop":
            check_json(text_of(done.token_ids), schema)


@pytest.mark.parametrize(
    ("option", "text"),
    [("regex", "(ab|[0-9]{2})+"), ("grammar", 'start: "a" start "b" | "n"'), ("schema", SCHEMA)],
)
def test_a_drafter_that_knows_the_grammar_is_right_about_what_follows(option: str, text: str) -> None:
    options: dict[str, Any] = {option: text}
    done, without = (generated(1.0, lies=lies, **options) for lies in (False, True))
    assert done.token_ids == without.token_ids == plain(ConstraintKind[option.upper()], text)
    assert done.swarm.accepted >= without.swarm.accepted


@pytest.mark.parametrize("temperature", quick_first([1.0, 0.0]))
def test_the_verifiers_own_drafter_drafts_within_the_grammar(temperature: float) -> None:
    text = "([a-f]{2}[0-9]{2})+"
    done, without = (
        generated(home=partial(constrained_engine, 0.8, 9, obeys=obeys), regex=text, temperature=temperature)
        for obeys in (True, False)
    )
    expected = plain(ConstraintKind.REGEX, text, temperature=temperature)
    assert done.token_ids == without.token_ids == expected
    assert done.swarm.home_tokens > without.swarm.home_tokens


def test_what_the_grammar_forces_takes_no_pass_of_its_own() -> None:
    text = "(abefl|nrstu)(0123|5678)"
    done = generated(regex=text)
    assert done.token_ids == plain(ConstraintKind.REGEX, text)
    # Two letters of ten tokens are chosen.
    assert (done.usage.completion_tokens, done.swarm.rounds) == (10, 3)
    assert told_origins(done.swarm.origins) == "forced 7, target alone 3"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"regex": "(a", "verifiers": 2}, r"^The regex cannot be used: .*unclosed group"),
        ({"regex": "a", "schema": SCHEMA}, "give one of them"),
        ({"regex": "a", "ignore_eos": True}, "no token ends it"),
        ({"regex": "a", "min_tokens": 3}, "goes with no bad_words, nor with min_tokens"),
        ({"regex": "a" * 70_000}, "at most 65536 bytes"),
    ],
)
def test_a_constraint_that_cannot_be_kept_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionRefused, match=told):
        generated(**options)


def test_a_verifier_that_applies_no_constraints_is_left_for_another() -> None:
    engines = iter((constrained_engine(obeys=False), constrained_engine()))
    done = reference.generated(
        PROMPT, target=lambda: next(engines), verifiers=2, eos=(END,), max_new_tokens=TOKENS, schema=SCHEMA
    )
    assert done.token_ids == plain(ConstraintKind.SCHEMA, SCHEMA)


STAGE_CURVE = CostCurve(((1, 0.015), (32, 0.02)))


@in_virtual_time
async def over_stages(*last: Callable[[], ScriptedEngine], is_lost: bool = False, **options: Any) -> Generation:
    """Generate a text with a head over two stages; `last` creates the engines of the second part's stages.

    With `is_lost` the first of these vanishes during the text.
    """
    async with SimulatedSwarm(facts=facts_of((END,))) as swarm:
        first, behind = even_parts(2)
        stages = [await swarm.stage(first, constrained_engine, curve=STAGE_CURVE)]
        stages += [await swarm.stage(behind, whole, curve=STAGE_CURVE) for whole in last]
        await swarm.head(Ring(stages=stages, traversal_s=0.04), constrained_engine())
        await swarm.drafter(constrained_engine(0.8, 1, waits=False))
        client = await swarm.client(timeout_s=60.0)
        run = await client.start(PROMPT, max_new_tokens=TOKENS, seed=7, **options)
        seen = 0
        async for chunk in run.chunks():
            seen += len(chunk.token_ids)
            if is_lost and seen > reference.LOST_AFTER_TOKENS:
                stages[1].kill()
        return run.result()


careless_engine = partial(constrained_engine, obeys=False)


@pytest.mark.parametrize(
    ("temperature", "is_lost"), quick_rows([(1.0, True), (0.0, False), (0.0, True), (1.0, False)])
)
def test_the_last_stage_applies_the_constraint_and_another_one_continues(temperature: float, is_lost: bool) -> None:
    text = "([a-f][0-9]true){8}"
    stages = constrained_engine, constrained_engine
    done = over_stages(*stages, is_lost=is_lost, regex=text, temperature=temperature)
    assert done.token_ids == plain(ConstraintKind.REGEX, text, temperature=temperature)
    assert any(origin.source == FORCED_SOURCE for origin in done.swarm.origins)


def test_stages_without_constraints_serve_other_requests_and_never_finish_one_with() -> None:
    assert over_stages(careless_engine).usage.completion_tokens
    with pytest.raises(GenerationFailed, match="constraints are not supported here"):
        over_stages(careless_engine, regex="(ab)+")
    with pytest.raises(GenerationFailed, match="the stages that are left apply no constraints"):
        over_stages(constrained_engine, careless_engine, is_lost=True, regex="([a-f]{2}[0-9]{2}){12}")
