import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.engine import sampling as numpy_sampling
from cosine_node.engine.sampling import NOTHING_KNOWN, Query
from cosine_node.engine.torch import sampling
from cosine_node.engine.vocabulary import DraftVocabulary
from cosine_protocol.request import Sampling, Shaping, TokenBias

ROUNDING = 1e-4
"""Scores so close may be told apart by the rounding of a sum."""


@st.composite
def recipes(draw: st.DrawFn) -> Sampling:
    return Sampling(
        temperature=draw(st.sampled_from([0.0, 0.0, 0.3, 0.8, 1.0, 2.0])),
        top_k=draw(st.sampled_from([0, 0, 1, 7, 60, 1000])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.95, 0.5])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3])),
        seed=draw(st.integers(0, 9)),
        shaping=draw(st.none() | shapings()),
    )


def shapings() -> st.SearchStrategy[Shaping]:
    """Changes to scores of the first tokens, of which a small vocabulary has not all."""
    return st.builds(
        Shaping,
        presence_penalty=st.sampled_from([0.0, 0.5, -2.0]),
        frequency_penalty=st.sampled_from([0.0, 0.25, -0.3]),
        logit_bias=st.lists(st.builds(TokenBias, st.integers(0, 9), st.floats(-9, 9, width=32)), max_size=4).map(
            tuple
        ),
        bad_words=st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=4).map(tuple),
        min_tokens=st.integers(0, 4),
        held_back=st.lists(st.integers(0, 9), max_size=2).map(tuple),
    )


@given(
    samplings=st.lists(recipes(), min_size=1, max_size=4),
    rounded=st.booleans(),
    is_reduced=st.booleans(),
    known_share=st.sampled_from([None, 0.5, 0.99, 1.0, 2.0]),
    vocab=st.sampled_from([2, 5, 200, 20_000]),
    seed=st.integers(0, 1000),
)
def test_choices_are_those_of_torch(
    samplings: list[Sampling], rounded: bool, is_reduced: bool, known_share: float | None, vocab: int, seed: int
) -> None:
    rng = random.Random(seed)
    logits = torch.randn(len(samplings), vocab, generator=torch.Generator().manual_seed(seed)) * 3
    if rounded:
        logits = logits.round(decimals=1)
    prefix = [rng.randrange(vocab) for _ in range(20)]
    queries = [
        Query(given, position, rng.choice([0, 1, 8]), prefix, [rng.randrange(vocab)])
        for position, given in enumerate(samplings)
    ]
    vocabulary = DraftVocabulary(tuple(range(3, 3 * vocab, 3))) if is_reduced else None
    known = None if known_share is None else max(1, int(known_share * vocab))
    before = logits.clone()
    found = numpy_sampling.choose(logits.numpy(), queries, vocabulary, known_tokens=known)
    expected = sampling.choose(logits, queries, vocabulary, known_tokens=known)
    assert torch.equal(logits, before)
    for ours, torchs in zip(found, expected, strict=True):
        assert (ours is None) is (torchs is None)
        if ours is None or torchs is None:
            # Nothing may come.
            continue
        assert ours.margin == pytest.approx(torchs.margin, abs=ROUNDING)
        assert ours.token == torchs.token or 0 < torchs.margin < ROUNDING
        assert [p for _, p in ours.candidates] == pytest.approx([p for _, p in torchs.candidates], abs=ROUNDING)


@given(
    sampling=recipes(),
    spread=st.sampled_from([0.01, 0.3, 3.0, 12.0]),
    is_reduced=st.booleans(),
    vocab=st.sampled_from([2, 300, 5_000, 49_152]),
    seed=st.integers(0, 1 << 30),
)
def test_a_choice_alone_is_bit_for_bit_the_one_with_candidates(
    sampling: Sampling, spread: float, is_reduced: bool, vocab: int, seed: int
) -> None:
    """Without candidates only the noise of possible winners is drawn."""
    logits = np.random.default_rng(seed).standard_normal((4, vocab), dtype=np.float32) * np.float32(spread)
    logits[1:, vocab // 2] += 5 * spread
    logits[2, : vocab // 3] = -math.inf
    logits[3] = logits[3].round(1)
    vocabulary = DraftVocabulary(tuple(range(3, 3 * vocab, 3))) if is_reduced else None
    alone = numpy_sampling.choose(logits, [Query(sampling, position) for position in range(4)], vocabulary)
    ranked = numpy_sampling.choose(logits, [Query(sampling, position, 1) for position in range(4)], vocabulary)
    for one, other in zip(alone, ranked, strict=True):
        assert (one is None) is (other is None)
        if one is not None and other is not None:
            assert (one.token, one.margin) == (other.token, other.margin)


@pytest.mark.parametrize("candidates", [0, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_nothing_is_drafted_where_only_unknown_tokens_are_possible(temperature: float, candidates: int) -> None:
    logits = np.full((1, 6), -math.inf, dtype=np.float32)
    logits[0, 4:] = 1
    query = Query(Sampling(temperature=temperature), 0, candidates)
    vocabulary = DraftVocabulary((2, 3, 5, 7))
    assert numpy_sampling.choose(logits, [query], vocabulary) == [NOTHING_KNOWN]
    assert sampling.choose(torch.from_numpy(logits), [query], vocabulary) == [NOTHING_KNOWN]


@pytest.mark.parametrize("vocab", [3, 100, 20_000])
def test_of_equal_scores_the_lowest_id_is_chosen(vocab: int) -> None:
    logits = np.zeros((1, vocab), dtype=np.float32)
    [choice] = numpy_sampling.choose(logits, [Query(Sampling(), 0, 2)])
    assert choice is not None
    assert (choice.token, choice.margin) == (0, 0.0)
    [(token, probability), _] = choice.candidates
    assert token == 0
    assert probability == pytest.approx(1 / vocab)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_no_number_has_no_choice(wrong: float, temperature: float) -> None:
    logits = np.zeros((3, 50), dtype=np.float32)
    logits[0, 7] = wrong
    logits[1, 7] = -math.inf
    logits[2] = -math.inf
    chosen = numpy_sampling.choose(logits, [Query(Sampling(temperature=temperature), 0)] * 3)
    assert [choice is None for choice in chosen] == [True, False, True]


@given(recipe=recipes(), known=st.sampled_from([1, 7, 199]), seed=st.integers(0, 1000))
def test_rows_without_a_token_are_as_if_they_were_not_there(recipe: Sampling, known: int, seed: int) -> None:
    logits = torch.randn(1, 200, generator=torch.Generator().manual_seed(seed)) * 3
    logits[0, known:] += 9
    query = [Query(recipe, 3, 8, [0, known - 1], [0])]
    (cut,) = sampling.choose(logits, query, known_tokens=known)
    (alone,) = sampling.choose(logits[:, :known], query)
    if cut is None or alone is None:
        # Nothing may come.
        assert cut is alone
        return
    assert (cut.token, [token for token, _ in cut.candidates]) == (
        alone.token,
        [token for token, _ in alone.candidates],
    )
    assert [p for _, p in cut.candidates] == pytest.approx([p for _, p in alone.candidates], abs=1e-6)
