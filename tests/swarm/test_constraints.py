"""A constraint is part of the request: with any drafters the text is valid, and that of plain decoding."""

import json
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation import workload
from cosine_lab.simulation.stages import Ring, even_parts
from cosine_lab.simulation.swarm import VERIFY_CURVE, SimulatedSwarm
from cosine_node.engine.constraints.grammars import Tried
from cosine_node.engine.curve import CostCurve
from cosine_p2p.request.origins import FORCED_SOURCE, told_origins
from cosine_p2p.request.results import Generation
from cosine_p2p.transport import channel
from cosine_p2p.trust.audit_rule import AuditState
from cosine_protocol.errors import GenerationFailed, OptionRefused
from cosine_protocol.request import Constraint, ConstraintKind, Sampling
from tests.node.engine.letter_grammars import END, letter_grammars, text_of
from tests.node.engine.schemas import SCHEMAS, check_json
from tests.swarm.reference import assert_freed
from tests.thoroughness import dear_examples

TOKENS = 60
VOCAB_TOKENS = END + 1
SLOWER = CostCurve(tuple((tokens, 1.3 * seconds) for tokens, seconds in VERIFY_CURVE.points))
"""So slow that nobody expects it to be faster than another."""
PROMPT = LetterCodec().decode([3, 9, 4, 7])
SCHEMA = (
    '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}'
)


def constrained_engine(
    fidelity: float = 1.0, seed: int = 0, *, waits: bool = True, obeys: bool = True
) -> ScriptedEngine:
    engine = ScriptedEngine(vocab_tokens=VOCAB_TOKENS, fidelity=fidelity, drafter_seed=seed)
    engine.grammars = letter_grammars(waits=waits) if obeys else None
    return engine


async def generated(
    *,
    fidelities: tuple[float, ...] = (),
    lies: bool = False,
    verifiers: int = 1,
    home: bool | None = None,
    **options: Any,
) -> Generation:
    """A text of a swarm, whose verifiers have a drafter of their own that knows the grammar, does not, or none."""
    async with SimulatedSwarm(one_way_s=0.005, eos=(END,)) as swarm:
        for _ in range(verifiers):
            home_engine = None if home is None else constrained_engine(0.8, 9, obeys=home)
            await swarm.verifier(constrained_engine(), home_engine=home_engine)
        for number, fidelity in enumerate(fidelities):
            engine = constrained_engine(fidelity, number, waits=False, obeys=not lies)
            await swarm.drafter(engine, domain=f"domain-{number}")
        client = await swarm.client(timeout_s=60.0)
        done = await client.generate(PROMPT, max_new_tokens=TOKENS, **{"seed": 7, **options})
        await assert_freed(swarm)
        return done


def plain(kind: ConstraintKind, text: str, *, temperature: float, seed: int = 7) -> tuple[int, ...]:
    """The target's own constrained text, one token at a time."""
    sampling = Sampling(temperature=temperature, seed=seed, constraint=Constraint(kind, text, (END,)))
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
    """Others draft without the grammar, so that what they draft is often not allowed."""
    expected = plain(ConstraintKind.SCHEMA, schema, temperature=temperature)
    for strategy in ("plain", "cosine"):
        drafters = tuple(fidelities)
        done = run_virtual(
            generated(fidelities=drafters, lies=lies, strategy=strategy, schema=schema, temperature=temperature)
        )
        assert done.token_ids == expected
        if done.finish_reason == "eos":
            check_json(text_of(done.token_ids), schema)


@pytest.mark.parametrize(
    ("option", "text"),
    [("regex", "(ab|[0-9]{2})+"), ("grammar", 'start: "a" start "b" | "n"'), ("schema", SCHEMA)],
)
def test_a_drafter_that_knows_the_grammar_is_right_about_what_follows(option: str, text: str) -> None:
    options: dict[str, Any] = {option: text}
    done = run_virtual(generated(fidelities=(1.0,), **options))
    assert done.token_ids == plain(ConstraintKind[option.upper()], text, temperature=0.0)
    without = run_virtual(generated(fidelities=(1.0,), lies=True, **options))
    assert without.token_ids == done.token_ids
    assert done.accepted >= without.accepted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_verifiers_own_drafter_drafts_within_the_grammar(temperature: float) -> None:
    text = "([a-f]{2}[0-9]{2})+"
    done, without = (
        run_virtual(generated(home=home, strategy="cosine", regex=text, temperature=temperature))
        for home in (True, False)
    )
    expected = plain(ConstraintKind.REGEX, text, temperature=temperature)
    assert done.token_ids == without.token_ids == expected
    assert done.home_tokens > without.home_tokens


def test_what_the_grammar_forces_takes_no_pass_of_its_own() -> None:
    text = "(abefl|nrstu)(0123|5678)"
    done = run_virtual(generated(regex=text))
    assert done.token_ids == plain(ConstraintKind.REGEX, text, temperature=0.0)
    # Two letters of ten tokens are chosen.
    assert (done.tokens, done.rounds) == (10, 3)
    assert told_origins(done.origins) == "forced 7, target alone 3"


def test_a_drafter_spends_no_pass_on_each_token_that_is_forced() -> None:
    text = "([a-f]{2}[0-9]truefalse){3}"
    passes = []
    for knows in (True, False):
        engine = constrained_engine(1.0, 1, waits=False, obeys=knows)

        async def run(engine: ScriptedEngine = engine) -> Generation:
            async with SimulatedSwarm(one_way_s=0.005, eos=(END,)) as swarm:
                await swarm.verifier(constrained_engine())
                await swarm.drafter(engine)
                client = await swarm.client(timeout_s=60.0)
                return await client.generate(PROMPT, max_new_tokens=TOKENS, seed=7, regex=text)

        done = run_virtual(run())
        assert done.token_ids == plain(ConstraintKind.REGEX, text, temperature=0.0)
        passes.append(engine.passes)
    assert passes[0] <= 0.5 * passes[1]


def test_a_schema_may_be_an_object_and_its_keys_come_in_that_order() -> None:
    schema = {"type": "object", "properties": {"b": {"const": 1}, "a": {"const": 2}}, "required": ["b", "a"]}
    compact = {"additionalProperties": False, "x-guidance": {"whitespace_flexible": False}}
    done = run_virtual(generated(schema={**schema, **compact}))
    assert list(json.loads(text_of(done.token_ids)).items()) == [("b", 1), ("a", 2)]


async def with_a_verifier_that_vanishes(**options: Any) -> Generation:
    async with SimulatedSwarm(one_way_s=0.005, eos=(END,)) as swarm:
        first = await swarm.verifier(constrained_engine())
        await swarm.verifier(constrained_engine())
        client = await swarm.client(timeout_s=60.0)
        run = await client.start(PROMPT, max_new_tokens=TOKENS, seed=7, verifier=None, **options)
        seen = 0
        async for chunk in run.chunks():
            seen += len(chunk.token_ids)
            if seen > 3 and not first.is_killed:
                await first.kill()
        return run.result()


def test_the_verifier_that_goes_on_goes_on_within_the_grammar() -> None:
    text = "(ab|[0-9]{2}){12}"
    done = run_virtual(with_a_verifier_that_vanishes(regex=text))
    assert done.token_ids == plain(ConstraintKind.REGEX, text, temperature=0.0)


def test_a_constraint_that_cannot_be_compiled_ends_the_request_at_once_and_asks_nobody_else() -> None:
    with pytest.raises(OptionRefused, match=r"^The regex cannot be used: .*unclosed group"):
        run_virtual(generated(verifiers=2, regex="(a"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"regex": "a", "schema": SCHEMA}, "give one of them"),
        ({"regex": "a", "ignore_eos": True}, "no token ends it"),
        ({"regex": "a", "min_tokens": 3}, "goes with no bad_words, nor with min_tokens"),
        ({"regex": "a" * 70_000}, "at most 65536 bytes"),
    ],
)
def test_what_could_not_be_kept_is_refused_before_anybody_is_asked(options: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionRefused, match=told):
        run_virtual(generated(**options))


def test_a_verifier_that_applies_no_constraints_is_left_for_another() -> None:
    async def run() -> Generation:
        async with SimulatedSwarm(one_way_s=0.005, eos=(END,)) as swarm:
            await swarm.verifier(constrained_engine(obeys=False))
            await swarm.verifier(constrained_engine())
            client = await swarm.client(timeout_s=60.0)
            return await client.generate(PROMPT, max_new_tokens=TOKENS, seed=7, schema=SCHEMA)

    assert run_virtual(run()).token_ids == plain(ConstraintKind.SCHEMA, SCHEMA, temperature=0.0)


def test_peers_of_older_versions_are_asked_for_nothing_that_they_would_ignore(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "FEATURES", tuple(name for name in channel.FEATURES if name != "constraint"))
    assert run_virtual(generated(fidelities=(0.9,))).tokens
    with pytest.raises(GenerationFailed, match="its version knows no constraint"):
        run_virtual(generated(fidelities=(0.9,), schema=SCHEMA))


STAGE_CURVE = CostCurve(((1, 0.015), (32, 0.02)))


async def over_stages(*last: bool, kills: bool = False, **options: Any) -> Generation:
    """A text of a head over two stages, of which each of the last ones applies constraints or does not.

    The first of them vanishes in the midst of the text where it is to be killed.
    """
    async with SimulatedSwarm(one_way_s=0.005, eos=(END,)) as swarm:
        first, behind = even_parts(2)
        wholes = [partial(constrained_engine, obeys=obeys) for obeys in last]
        stages = [await swarm.stage(first, constrained_engine, curve=STAGE_CURVE)]
        stages += [await swarm.stage(behind, whole, curve=STAGE_CURVE) for whole in wholes]
        await swarm.verifier(constrained_engine(), ring=Ring(stages=stages, traversal_s=0.04))
        await swarm.drafter(constrained_engine(0.8, 1, waits=False))
        client = await swarm.client(timeout_s=60.0)
        run = await client.start(PROMPT, max_new_tokens=TOKENS, seed=7, **options)
        seen = 0
        async for chunk in run.chunks():
            seen += len(chunk.token_ids)
            if kills and seen > 3:
                stages[1].kill()
        return run.result()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kills", [False, True])
def test_over_stages_the_last_one_applies_the_constraint_and_another_one_goes_on(
    temperature: float, kills: bool
) -> None:
    text = "([a-f][0-9]true){8}"
    done = run_virtual(over_stages(True, True, kills=kills, regex=text, temperature=temperature))
    assert done.token_ids == plain(ConstraintKind.REGEX, text, temperature=temperature)
    assert any(origin.source == FORCED_SOURCE for origin in done.origins)


def test_a_constraint_that_the_last_stage_cannot_compile_fails_its_request_and_nothing_else() -> None:
    async def run() -> Generation:
        def slow_engine() -> ScriptedEngine:
            engine = constrained_engine()
            engine.grammars = letter_grammars(tried=lambda constraint: Tried("it cannot be compiled within 5 s"))
            return engine

        async with SimulatedSwarm(one_way_s=0.005, eos=(END,)) as swarm:
            first, behind = even_parts(2)
            stages = [await swarm.stage(first, constrained_engine, curve=STAGE_CURVE)]
            stages.append(await swarm.stage(behind, slow_engine, curve=STAGE_CURVE))
            await swarm.verifier(constrained_engine(), ring=Ring(stages=stages, traversal_s=0.04))
            client = await swarm.client(timeout_s=60.0)
            free = await client.start(PROMPT, max_new_tokens=TOKENS)
            with pytest.raises(OptionRefused, match="too complex for the last stage"):
                await client.generate(PROMPT, max_new_tokens=TOKENS, regex="(ab)+")
            async for _ in free.chunks():
                pass
            return free.result()

    assert run_virtual(run()).tokens


def test_over_stages_that_apply_none_a_constraint_is_refused_and_all_else_served() -> None:
    assert run_virtual(over_stages(False)).tokens
    with pytest.raises(GenerationFailed, match="no constraints are applied here"):
        run_virtual(over_stages(False, regex="(ab)+"))


def test_a_text_whose_constraint_the_stages_that_are_left_do_not_apply_ends_and_is_never_left_without_it() -> None:
    with pytest.raises(GenerationFailed, match="the stages that are left apply no constraints"):
        run_virtual(over_stages(True, False, kills=True, regex="([a-f]{2}[0-9]{2}){12}"))


class CarelessEngine(ScriptedEngine):
    """Says that it applies constraints, and leaves them out."""

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        return super().open(sampling=replace(sampling, constraint=None), prompt_tokens=prompt_tokens, scope=scope)


def unconstrained(prompt: tuple[int, ...]) -> tuple[int, ...]:
    return workload.plain_stream(constrained_engine(), prompt, Sampling(seed=7), tokens=TOKENS, eos=(END,))


def test_a_verifier_that_ignores_the_constraint_is_convicted_by_two_others() -> None:
    # One after which the text goes on for long where nothing is ruled out.
    prompts = ((one, two) for one in range(VOCAB_TOKENS) for two in range(VOCAB_TOKENS))
    prompt = LetterCodec().decode(next(each for each in prompts if len(unconstrained(each)) == TOKENS))

    async def run() -> Generation:
        async with SimulatedSwarm(one_way_s=0.005, eos=(END,)) as swarm:
            careless = CarelessEngine(vocab_tokens=VOCAB_TOKENS)
            careless.grammars = letter_grammars()
            await swarm.verifier(careless)
            client = await swarm.client(timeout_s=60.0, strategy="plain", audit=1.0, seed=7, regex="(ab)+")
            # Alone it is measured, and then preferred to strangers.
            await client.generate(prompt, max_new_tokens=10, audit=0.0)
            for _ in range(2):
                await swarm.verifier(constrained_engine(), curve=SLOWER)
            run = await client.start(prompt, max_new_tokens=TOKENS)
            async for _ in run.chunks():
                pass
            await run.audited()
            return run.result()

    done = run_virtual(run())
    assert done.token_ids == unconstrained(LetterCodec().encode(prompt))
    assert done.audit is not None and done.audit.state is AuditState.CONVICTED
