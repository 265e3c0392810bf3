"""A prediction changes no token of a text, and the better it is the fewer passes the text takes."""

import random
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p.request.results import Generation
from cosine_protocol.errors import OptionRefused, UsageError
from cosine_protocol.limits import MAX_PREDICTION_TOKENS
from tests.swarm.reference import assert_freed
from tests.thoroughness import dear_examples

PROMPT = LetterCodec().decode([3, 9, 4, 7])
TOKENS = 60


async def generated(
    prediction: Any = None, *, one_way_s: float = 0.005, drafters: int = 0, **options: Any
) -> Generation:
    async with SimulatedSwarm(one_way_s=one_way_s) as swarm:
        await swarm.verifier()
        for number in range(drafters):
            await swarm.drafter(ScriptedEngine(fidelity=0.8, drafter_seed=number), domain=f"domain-{number}")
        client = await swarm.client(timeout_s=60.0)
        given = {"max_new_tokens": TOKENS, "seed": 7, "prediction": prediction, **options}
        done = await client.generate(PROMPT, **given)
        await assert_freed(swarm)
        return done


@cache
def unpredicted(**options: Any) -> Generation:
    """The same without a prediction, written once for each set of options."""
    return run_virtual(generated(**options))


def edited(tokens: tuple[int, ...], share: float, *, seed: int) -> tuple[int, ...]:
    """A text of which so many tokens are replaced, left out, or have a new one before them."""
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
    drafters=st.integers(0, 1),
    strategy=st.sampled_from(["plain", "cosine"]),
)
@dear_examples()
def test_the_text_is_the_same_with_any_prediction(
    share: float, seed: int, temperature: float, drafters: int, strategy: str
) -> None:
    options: dict[str, Any] = {"temperature": temperature, "drafters": drafters, "strategy": strategy}
    without = unpredicted(**options)
    done = run_virtual(generated(edited(without.token_ids, share, seed=seed), **options))
    assert done.token_ids == without.token_ids
    assert (without.accepted_prediction_tokens, without.rejected_prediction_tokens) == (0, 0)


@pytest.mark.parametrize("one_way_s", [0.005, 0.15])
def test_a_text_that_was_predicted_takes_a_fraction_of_the_passes_however_far_the_verifier_is(
    one_way_s: float,
) -> None:
    without = unpredicted(one_way_s=one_way_s)
    done = run_virtual(generated(without.text, one_way_s=one_way_s))
    assert done.token_ids == without.token_ids
    assert done.rounds < without.rounds / 4
    assert (done.accepted_prediction_tokens, done.rejected_prediction_tokens) == (TOKENS, 0)
    longer = run_virtual(generated(without.text + "ABCDE"))
    assert (longer.accepted_prediction_tokens, longer.rejected_prediction_tokens) == (TOKENS, 5)


def test_an_edit_of_which_a_tenth_is_changed_takes_fewer_than_half_of_the_passes() -> None:
    without = unpredicted(max_new_tokens=200)
    before = edited(without.token_ids, 0.1, seed=1)
    done = run_virtual(generated(before, max_new_tokens=200))
    assert done.token_ids == without.token_ids
    assert done.rounds < without.rounds / 2
    assert done.accepted_prediction_tokens + done.rejected_prediction_tokens == len(before)
    assert done.accepted_prediction_tokens > 0.8 * len(before)


def test_with_the_strategy_plain_nothing_is_drafted() -> None:
    without = unpredicted()
    done = run_virtual(generated(without.text, strategy="plain"))
    assert done.rounds == TOKENS


def test_the_verifier_that_goes_on_drafts_from_it_where_the_text_stands() -> None:
    async def run(prediction: str) -> Generation:
        async with SimulatedSwarm(one_way_s=0.005) as swarm:
            first = await swarm.verifier()
            await swarm.verifier()
            client = await swarm.client(timeout_s=60.0)
            run = await client.start(PROMPT, max_new_tokens=200, seed=7, prediction=prediction)
            seen = 0
            async for chunk in run.chunks():
                seen += len(chunk.token_ids)
                if seen > 3 and not first.is_killed:
                    await first.kill()
            return run.result()

    without = unpredicted(max_new_tokens=200)
    done = run_virtual(run(without.text))
    assert done.token_ids == without.token_ids
    assert done.rounds < 40


@pytest.mark.parametrize("prediction", [(1,) * (MAX_PREDICTION_TOKENS + 1), (1 << 30,)])
def test_what_no_target_could_write_is_refused(prediction: tuple[int, ...]) -> None:
    with pytest.raises(OptionRefused, match="at most 32768 tokens of the target"):
        run_virtual(generated(prediction))


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError, match="prediction must be a text, or token ids"):
        run_virtual(generated(3.5))


def test_an_empty_prediction_is_none() -> None:
    assert run_virtual(generated("")).token_ids == unpredicted().token_ids


def test_tokens_that_the_targets_model_lacks_are_not_drafted_from() -> None:
    """The tokenizer has more than the model; nothing of that costs the request."""
    done = run_virtual(generated((3, 5000, 9)))
    assert done.token_ids == unpredicted().token_ids
