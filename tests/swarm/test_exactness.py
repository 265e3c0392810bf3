"""Tests that texts are the target's for all strategies, options, drafters and delays."""

import random
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation.swarm import SimulatedHome, SimulatedSwarm
from cosine_p2p.request.results import Generation
from cosine_p2p.transport import channel
from cosine_p2p.trust.audit_rule import AuditState
from cosine_protocol.errors import GenerationFailed, OptionRefused, UsageError
from cosine_protocol.request import Sampling, Shaping, TokenBias
from cosine_protocol.verify import MAX_PREDICTION_TOKENS
from tests.swarm.reference import (
    VOCAB_TOKENS,
    assert_freed,
    draft_engine,
    draft_engines,
    generated,
    heard,
    in_a_swarm,
    plain_stream,
    prompt_of,
    target_engine,
)
from tests.thoroughness import dear_examples, quick_first

TOKENS = 20
LETTERS = LetterCodec()
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "T=0.8": {"temperature": 0.8},
    "filtered": {"temperature": 0.9, "top_k": 12, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2},
}


@pytest.mark.parametrize("drafters", quick_first([2, 0, 4]))
@pytest.mark.parametrize("one_way_s", quick_first([0.005, 0.0, 0.05]))
@pytest.mark.parametrize("named", SAMPLINGS)
@pytest.mark.parametrize("strategy", ["plain", "cosine"])
def test_tokens_are_those_of_plain_decoding(strategy: str, named: str, one_way_s: float, drafters: int) -> None:
    for has_eos in (False, True):
        rng = random.Random(f"{strategy} {named} {one_way_s} {drafters} {has_eos}")
        prompt = prompt_of(rng)
        sampling = Sampling(**SAMPLINGS[named], seed=rng.getrandbits(64))
        fidelities = [rng.choice((0.0, 0.3, 0.7, 0.9, 1.0)) for _ in range(drafters)]
        whole = plain_stream(prompt, sampling, tokens=TOKENS)
        eos = (whole[rng.randrange(2, TOKENS - 2)],) if has_eos else ()
        expected = plain_stream(prompt, sampling, tokens=TOKENS, eos=eos)
        options: dict[str, Any] = SAMPLINGS[named] | {"seed": sampling.seed, "max_new_tokens": TOKENS}
        generation = generated(
            prompt,
            one_way_s=one_way_s,
            eos=eos,
            drafters=draft_engines(*fidelities),
            client={"strategy": strategy},
            **options,
        )
        assert generation.token_ids == expected
        assert generation.finish_reason == ("stop" if has_eos else "length")
        assert generation.swarm.accepted <= len(expected)


# Shaping: penalties, biases, forbidden words and least lengths.

A_TOKEN = st.integers(0, VOCAB_TOKENS - 1)
WORD = st.lists(A_TOKEN, min_size=1, max_size=2).map(LETTERS.decode)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "presence_penalty": st.sampled_from([1.5, -1.0]),
        "frequency_penalty": st.sampled_from([0.5, -0.25]),
        "logit_bias": st.dictionaries(A_TOKEN, st.floats(-4, 4, width=32), min_size=1, max_size=8),
        "bad_words": st.lists(WORD, min_size=1, max_size=12),
        "min_tokens": st.integers(1, TOKENS),
        "ignore_eos": st.just(True),
        "stop_token_ids": st.lists(A_TOKEN, max_size=2),
        "repetition_penalty": st.just(1.3),
        "temperature": st.sampled_from([0.7, 1.2]),
    },
)
SHAPED: dict[str, Any] = {
    "presence_penalty": 1.0,
    "frequency_penalty": 0.5,
    "logit_bias": {3: 2.0, 7: -4.0},
    "bad_words": ["5", "91"],
    "min_tokens": 9,
    "temperature": 0.8,
}


def shaped_stream(prompt: str, *, eos: tuple[int, ...], options: dict[str, Any]) -> tuple[int, ...]:
    """The target's own text with seed 7, with the meaning of the options for its sampler."""
    ends = (*(() if options.get("ignore_eos") else eos), *options.get("stop_token_ids", ()))
    shaping = Shaping(
        presence_penalty=options.get("presence_penalty", 0.0),
        frequency_penalty=options.get("frequency_penalty", 0.0),
        logit_bias=tuple(TokenBias(*each) for each in options.get("logit_bias", {}).items()),
        bad_words=tuple({LETTERS.encode(word.lstrip()) for word in options.get("bad_words", ())}),
        min_tokens=options.get("min_tokens", 0),
        held_back=ends,
    )
    sampling = Sampling(
        temperature=options.get("temperature", 0.0),
        repetition_penalty=options.get("repetition_penalty", 1.0),
        seed=7,
        shaping=shaping,
    )
    return plain_stream(prompt, sampling, tokens=TOKENS, eos=ends)


@given(options=OPTIONS, fidelities=st.lists(st.sampled_from([0.3, 0.8, 1.0]), max_size=2), seed=st.integers(0, 99))
@dear_examples()
def test_with_any_shaping_and_drafters_the_text_is_that_of_plain_decoding(
    options: dict[str, Any], fidelities: list[float], seed: int
) -> None:
    prompt = prompt_of(random.Random(seed))
    eos = (seed % VOCAB_TOKENS, (seed + 9) % VOCAB_TOKENS)
    scene: dict[str, Any] = {"eos": eos, "max_new_tokens": TOKENS}
    for strategy in ("plain", "cosine"):
        done = generated(prompt, drafters=draft_engines(*fidelities), strategy=strategy, **scene, **options)
        assert done.token_ids == shaped_stream(prompt, eos=eos, options=options)


def test_a_drafter_shapes_its_own_scores_alike() -> None:
    options: dict[str, Any] = {"presence_penalty": 1.0, "frequency_penalty": 0.5, "logit_bias": {3: 2.0}}
    done = generated(
        prompt_of(random.Random("shaped")), drafters=draft_engines(1.0), max_new_tokens=TOKENS, **options
    )
    assert done.swarm.accepted > TOKENS // 2


@pytest.mark.parametrize("coordination", ["client", "verifier"])
@in_a_swarm
async def test_a_shaped_text_is_continued_and_audited(swarm: SimulatedSwarm, coordination: str) -> None:
    prompt = prompt_of(random.Random("failover"))
    verifiers = [await swarm.verifier(target_engine(), home=SimulatedHome(draft_engine(0.7))) for _ in range(3)]
    await swarm.drafter(draft_engine(0.9))
    client = await swarm.client(strategy="cosine", audit=1.0, coordination=coordination)
    run = await heard(await client.start(prompt, max_new_tokens=TOKENS, seed=7, **SHAPED), losing=verifiers)
    await run.audited()
    await assert_freed(swarm)
    done = run.result()
    assert done.token_ids == shaped_stream(prompt, eos=(), options=SHAPED)
    assert len(done.swarm.verifiers) == 2
    assert done.audit is not None and done.audit.state is AuditState.PASSED


def test_a_token_that_stops_the_text_is_no_part_of_it() -> None:
    prompt = prompt_of(random.Random("stopped"))
    whole = shaped_stream(prompt, eos=(), options={})
    stop = next(token for index, token in enumerate(whole) if token not in whole[:index] and index > 3)
    done = generated(prompt, max_new_tokens=TOKENS, stop_token_ids=[stop])
    assert (done.finish_reason, done.token_ids[-1]) == ("stop", stop)
    assert done.text == LETTERS.decode(done.token_ids[:-1])


@pytest.mark.parametrize(
    ("feature", "option"),
    [("shaping", {"presence_penalty": 1.0}), ("constraint", {"regex": "a+"}), ("logprobs", {"logprobs": 1})],
)
def test_peers_have_known_features(feature: str, option: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "FEATURES", tuple(name for name in channel.FEATURES if name != feature))
    prompt = prompt_of(random.Random("older"))
    assert generated(prompt, drafters=draft_engines(0.9), max_new_tokens=TOKENS).usage.completion_tokens == TOKENS
    with pytest.raises(GenerationFailed, match=f"its version knows no {feature}"):
        generated(prompt, max_new_tokens=TOKENS, eos=(1,), **option)


# Predictions: the better one is, the fewer passes a text takes.

PROMPT = LETTERS.decode([3, 9, 4, 7])
PREDICTED_TOKENS = 60


def predicted(prediction: Any = None, *, fidelities: tuple[float, ...] = (), **options: Any) -> Generation:
    return generated(
        PROMPT,
        target=ScriptedEngine,
        drafters=[ScriptedEngine(fidelity=each) for each in fidelities],
        **{"max_new_tokens": PREDICTED_TOKENS, "prediction": prediction} | options,
    )


unpredicted = cache(predicted)


def edited(tokens: tuple[int, ...], share: float, *, seed: int) -> tuple[int, ...]:
    """A text in which a share of the tokens is replaced, left out, or preceded by a new one."""
    chance = random.Random(seed)
    found: list[int] = []
    for token in tokens:
        kind = chance.choice("rlnk") if chance.random() < share else "k"
        found += {"r": [chance.randrange(64)], "l": [], "n": [chance.randrange(64), token], "k": [token]}[kind]
    return tuple(found)


@given(
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 99),
    temperature=st.sampled_from([0.0, 1.0]),
    fidelities=st.sampled_from([(), (0.8,)]),
    strategy=st.sampled_from(["plain", "cosine"]),
)
@dear_examples()
def test_the_text_is_the_same_with_any_prediction(share: float, seed: int, **options: Any) -> None:
    without = unpredicted(**options)
    done = predicted(edited(without.token_ids, share, seed=seed), **options)
    assert done.token_ids == without.token_ids
    assert (without.usage.accepted_prediction_tokens, without.usage.rejected_prediction_tokens) == (0, 0)


@pytest.mark.parametrize("one_way_s", quick_first([0.15, 0.005]))
def test_a_predicted_text_takes_a_fraction_of_the_passes(one_way_s: float) -> None:
    without = unpredicted(one_way_s=one_way_s)
    done = predicted(without.text + "ABCDE", one_way_s=one_way_s)
    assert done.token_ids == without.token_ids
    assert done.swarm.rounds < without.swarm.rounds / 4
    assert (done.usage.accepted_prediction_tokens, done.usage.rejected_prediction_tokens) == (PREDICTED_TOKENS, 5)
    assert predicted(without.text, strategy="plain").swarm.rounds == PREDICTED_TOKENS


def test_an_edit_takes_fewer_than_half_of_the_passes_also_where_another_verifier_continues() -> None:
    without = unpredicted(max_new_tokens=200)
    before = edited(without.token_ids, 0.1, seed=1)
    done, continued = (predicted(before, max_new_tokens=200, is_lost=lost) for lost in (False, True))
    assert done.token_ids == continued.token_ids == without.token_ids
    assert done.swarm.rounds < without.swarm.rounds / 2 and continued.swarm.rounds < without.swarm.rounds / 2
    assert done.usage.accepted_prediction_tokens + done.usage.rejected_prediction_tokens == len(before)
    assert done.usage.accepted_prediction_tokens > 0.8 * len(before)


def test_what_is_no_prediction_is_refused_or_ignored() -> None:
    for prediction in ((1,) * (MAX_PREDICTION_TOKENS + 1), (1 << 30,)):
        with pytest.raises(OptionRefused, match="at most 32768 tokens of the target"):
            predicted(prediction)
    with pytest.raises(UsageError, match="prediction must be a text, or token ids"):
        predicted(3.5)
    # The tokenizer has more tokens than the model.
    assert predicted("").token_ids == predicted((3, 5000, 9)).token_ids == unpredicted().token_ids
