"""The keyed samplers of PyTorch and NumPy: the reference's noise, Hugging Face's filters, choices by the law."""

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as hf

from cosine_engine.base import Choice
from cosine_engine.kernels.noise import sampled
from cosine_engine.lanes import sampling as numpy_sampling
from cosine_engine.sampling import NOTHING_KNOWN, NoiseKey, Query, Recipe
from cosine_engine.torch import sampling as keyed
from cosine_engine.torch.sampling import choose, gumbel_noise
from cosine_engine.vocabulary import DraftVocabulary
from cosine_protocol.noise import gumbel
from cosine_protocol.request import Sampling, Shaping, TokenBias
from tests.thoroughness import soak_rest

CPU = torch.device("cpu")
LAST_SEED = (1 << 64) - 1
DRAWS = 6000


@given(seed=st.integers(0, LAST_SEED), position=st.integers(-1000, 1 << 20))
@example(seed=LAST_SEED, position=0)
def test_noise_equals_the_reference_bit_for_bit(seed: int, position: int) -> None:
    noise = gumbel_noise([NoiseKey(seed, position, 80)], CPU)[0]
    assert noise.dtype == torch.float32
    assert noise.tolist() == [gumbel(seed=seed, position=position, token=token) for token in range(80)]


def test_rows_drawn_together_are_those_drawn_one_by_one() -> None:
    keys = [NoiseKey(seed, position, 300) for seed in (0, 7, LAST_SEED) for position in range(-2, 9)]
    keys += keys[:5]
    assert torch.equal(gumbel_noise(keys, CPU), torch.cat([gumbel_noise([key], CPU) for key in keys]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_draws_the_same_noise() -> None:
    for seed in (0, 1, 1 << 63, LAST_SEED):
        here, there = (gumbel_noise([NoiseKey(seed, 5, 50_000)], torch.device(name)) for name in ("cpu", "cuda"))
        assert torch.equal(here, there.cpu())


def _logits(rows: int, vocab: int) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0)) * 3


def _one(logits: list[float], sampling: Sampling) -> Choice:
    choice = choose(torch.tensor([logits]), [Query(sampling, 0)])[0]
    assert choice is not None
    return choice


FILTERS: list[tuple[tuple[int, float, float], list[Any]]] = [
    ((0, 1.0, 0.0), []),
    *(((top_k, 1.0, 0.0), [hf.TopKLogitsWarper(top_k)]) for top_k in (1, 3, 50, 500)),
    *(((0, top_p, 0.0), [hf.TopPLogitsWarper(top_p)]) for top_p in (0.01, 0.3, 0.9, 0.999)),
    *(((0, 1.0, min_p), [hf.MinPLogitsWarper(min_p)]) for min_p in (0.001, 0.1, 1.0)),
    ((40, 0.9, 0.02), [hf.TopKLogitsWarper(40), hf.TopPLogitsWarper(0.9), hf.MinPLogitsWarper(0.02)]),
]


@pytest.mark.parametrize(("filters", "warpers"), FILTERS)
def test_filters_equal_hugging_face(filters: tuple[int, float, float], warpers: list[Any]) -> None:
    scores = _logits(20, 200)
    scores -= scores.amax(-1, keepdim=True)
    if filters[1] == 1:
        # Top-p may drop any one of several ties.
        scores = scores.round(decimals=1)
    expected = hf.TemperatureLogitsWarper(0.7)(None, scores)
    for warper in warpers:
        expected = warper(None, expected)
    found = keyed.log_probabilities(scores, Recipe(0.7, *filters, 1.0))
    assert torch.equal(found.isinf(), expected.isinf())
    assert torch.allclose(found, expected.log_softmax(-1), atol=1e-5)


SHAPINGS = st.builds(
    Shaping,
    presence_penalty=st.sampled_from([0.0, 0.5, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.25, 2.0, -0.3]),
    logit_bias=st.dictionaries(st.integers(0, 19), st.floats(-100, 100, width=32), max_size=6).map(
        lambda biases: tuple(TokenBias(*each) for each in biases.items())
    ),
    bad_words=st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=3).map(tuple), max_size=9).map(tuple),
    min_tokens=st.integers(0, 12),
    held_back=st.lists(st.integers(0, 19), max_size=3).map(tuple),
)
"""Changes to scores of the first tokens, of which a small vocabulary has not all."""


@given(
    shaping=SHAPINGS,
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    prompt=st.lists(st.integers(0, 19), min_size=1, max_size=8),
    output=st.lists(st.integers(0, 19), max_size=12),
    split=st.integers(0, 20),
)
def test_shaped_scores_equal_hugging_faces_and_the_penalties_openais_formula(
    shaping: Shaping, repetition_penalty: float, prompt: list[int], output: list[int], split: int
) -> None:
    vocab, position = 20, len(output)
    scores = _logits(1, vocab)
    expected, text, written = scores, torch.tensor([[*prompt, *output]]), torch.tensor([output], dtype=torch.int64)
    if shaping.logit_bias:
        sequences = {(one.token,): one.bias for one in shaping.logit_bias}
        expected = hf.SequenceBiasLogitsProcessor(sequences)(text, expected)
    if shaping.bad_words:
        words = [list(word) for word in shaping.bad_words]
        expected = hf.NoBadWordsLogitsProcessor(words)(written, expected)
    if shaping.held_back:
        processor = hf.MinNewTokensLengthLogitsProcessor(len(prompt), shaping.min_tokens, list(shaping.held_back))
        expected = processor(text, expected)
    expected = hf.RepetitionPenaltyLogitsProcessor(repetition_penalty)(text, expected)
    counts = torch.tensor([[output.count(token) for token in range(vocab)]], dtype=torch.float32)
    expected = expected - counts * shaping.frequency_penalty - (counts > 0).float() * shaping.presence_penalty
    sampling = Sampling(repetition_penalty=repetition_penalty, shaping=shaping)
    tokens = [*prompt, *output]
    query = Query(sampling, position, vocab, tokens[:split], tokens[split:])
    (choice,) = choose(scores, [query])
    if not expected.isfinite().any():
        assert choice is None
        return
    assert choice is not None
    likely = dict(choice.candidates)
    found = [likely.get(token, 0.0) for token in range(vocab)]
    assert found == pytest.approx(expected.softmax(-1)[0].tolist(), rel=1e-4, abs=1e-6)


def test_greedy_is_argmax_and_ties_go_to_the_lowest_id() -> None:
    assert _one([0.0, 2.0, 1.0, 2.0], Sampling()) == Choice(1, 0.0)
    assert _one([0.5, 2.0, 1.0], Sampling()) == Choice(1, 1.0)
    flat = choose(torch.zeros(3, 500), [Query(Sampling(), 0, 4)] * 3)
    assert all(choice is not None and choice.token == 0 for choice in flat)
    assert all(choice is not None and choice.candidates[0][0] == 0 for choice in flat)


@pytest.mark.parametrize(
    "sampling",
    soak_rest(
        [
            Sampling(temperature=0.6),
            Sampling(temperature=1.0, top_p=0.8),
            Sampling(temperature=1.0, top_k=4),
            Sampling(temperature=1.0, min_p=0.2),
        ],
        2,
    ),
)
def test_choices_follow_the_law(sampling: Sampling) -> None:
    logits = torch.tensor([1.5, 0.2, -1.0, 0.9, 0.0, -0.4, 1.1])
    recipe = Recipe(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, 1.0)
    law = keyed.log_probabilities(logits[None], recipe)[0].exp()
    parameters = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    queries = [Query(Sampling(seed=seed, **parameters), seed % 7) for seed in range(DRAWS)]
    tokens = [choice.token for choice in choose(logits.repeat(DRAWS, 1), queries) if choice]
    counts = torch.bincount(torch.tensor(tokens), minlength=7)
    allowed = law > 0
    assert int(counts[~allowed].sum()) == 0
    chi_square = float(((counts - law * DRAWS) ** 2 / (law * DRAWS))[allowed].sum())
    # 99.9 % quantile of chi-square with six degrees of freedom, an upper bound for fewer.
    assert chi_square < 22.46


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=2)])
def test_reserved_ids_are_never_chosen_but_lessen_what_is(sampling: Sampling) -> None:
    vocabulary = DraftVocabulary((7, 40, 41))
    own = torch.tensor([[0.0, 2.0, 1.0, 9.0, 9.0]])
    (choice,) = choose(own, [Query(sampling, 0, 5)], vocabulary)
    assert choice is not None
    assert sorted(token for token, _ in choice.candidates) == [0, 1, 2]
    assert sum(chance for _, chance in choice.candidates) < 0.1


ROUNDING = 1e-4
"""Scores so close may be told apart by the rounding of a sum."""
CERTAIN = 50.0
"""Larger margins are not exact."""


@st.composite
def recipes(draw: st.DrawFn) -> Sampling:
    return Sampling(
        temperature=draw(st.sampled_from([0.0, 0.0, 0.3, 0.8, 1.0, 2.0])),
        top_k=draw(st.sampled_from([0, 0, 1, 7, 60, 1000])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.95, 0.5])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3])),
        seed=draw(st.integers(0, 9)),
        shaping=draw(st.none() | SHAPINGS),
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
    masks = [rng.choice([None, np.array([rng.random() < 0.4 for _ in range(vocab)])]) for _ in samplings]
    queries = [
        Query(
            given,
            position,
            rng.choice([0, 1, 8]),
            prefix,
            [rng.randrange(vocab)],
            allowed=None if mask is None else np.packbits(mask, bitorder="little"),
        )
        for position, (given, mask) in enumerate(zip(samplings, masks, strict=True))
    ]
    vocabulary = DraftVocabulary(tuple(range(3, 3 * vocab, 3))) if is_reduced else None
    known = None if known_share is None else max(1, int(known_share * vocab))
    before = logits.clone()
    found = numpy_sampling.choose(logits.numpy(), queries, vocabulary, known_tokens=known)
    expected = keyed.choose(logits, queries, vocabulary, known_tokens=known)
    assert torch.equal(logits, before)
    for ours, torchs, mask in zip(found, expected, masks, strict=True):
        assert (ours is None) is (torchs is None)
        if ours is None or torchs is None:
            # Nothing may come.
            continue
        assert min(ours.margin, CERTAIN) == pytest.approx(min(torchs.margin, CERTAIN), abs=ROUNDING)
        assert ours.token == torchs.token or 0 < torchs.margin < ROUNDING
        assert mask is None or all(mask[token] for token, _ in ours.candidates)
        assert [p for _, p in ours.candidates] == pytest.approx([p for _, p in torchs.candidates], abs=ROUNDING)


@given(
    sampling=recipes(),
    spread=st.sampled_from([0.01, 0.3, 3.0, 12.0]),
    is_reduced=st.booleans(),
    vocab=st.sampled_from([2, 300, 5_000, 49_152]),
    seed=st.integers(0, 1 << 30),
)
def test_a_choice_alone_is_that_with_candidates(
    sampling: Sampling, spread: float, is_reduced: bool, vocab: int, seed: int
) -> None:
    logits = np.random.default_rng(seed).standard_normal((4, vocab), dtype=np.float32) * np.float32(spread)
    logits[1:, vocab // 2] += 5 * spread
    logits[2, : vocab // 3] = -math.inf
    logits[3] = logits[3].round(1)
    vocabulary = DraftVocabulary(tuple(range(3, 3 * vocab, 3))) if is_reduced else None
    queries = [Query(sampling, position) for position in range(4)]
    ranked = numpy_sampling.choose(logits, [replace(query, candidates=1) for query in queries], vocabulary)
    for alone in (
        numpy_sampling.choose(logits, queries, vocabulary),
        keyed.choose(torch.from_numpy(logits), queries, vocabulary),
    ):
        for one, other in zip(alone, ranked, strict=True):
            assert (one is None) is (other is None)
            if one is not None and other is not None:
                assert one.token == other.token or other.margin < ROUNDING
                assert min(one.margin, CERTAIN) == pytest.approx(min(other.margin, CERTAIN), abs=ROUNDING)


@given(
    spread=st.sampled_from([0.01, 3.0, 12.0]),
    vocab=st.sampled_from([2, 63, 300, 49_152]),
    candidates=st.sampled_from([0, 1, 8]),
    is_reduced=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_the_race_has_the_winners_of_all_exact_scores(
    spread: float, vocab: int, candidates: int, is_reduced: bool, seed: int
) -> None:
    log_probs = torch.randn(1, vocab, generator=torch.Generator().manual_seed(seed)).mul(spread).log_softmax(-1)
    log_probs[0, :: seed % 7 + 2] = -math.inf
    query = Query(Sampling(temperature=1.0, seed=seed), seed % 100, candidates)
    vocabulary = DraftVocabulary(tuple(range(3, 3 * vocab, 3))) if is_reduced else None
    choice = sampled(log_probs.numpy()[0], query, vocabulary)
    scores = log_probs[0] + gumbel_noise([NoiseKey(seed, seed % 100, vocab, vocabulary)], CPU)[0]
    known = scores if vocabulary is None else scores[: vocabulary.reserved_id]
    if known.isfinite().sum() < 1:
        assert choice == (NOTHING_KNOWN if scores.isfinite().any() else None)
        return
    best = known.topk(min(max(2, candidates), len(known)))
    assert choice is not None
    assert choice.token == int(best.indices[0])
    second = float(best.values[1]) if len(known) > 1 else -math.inf
    assert min(choice.margin, CERTAIN) == min(float(best.values[0]) - second, CERTAIN)
    expected = list(zip(best.indices.tolist(), scores.softmax(-1)[best.indices].tolist(), strict=True))
    candidates_found = [(token, p) for token, p in choice.candidates if p > 1e-30]
    assert [token for token, _ in candidates_found] == [token for token, p in expected if p > 1e-30][:candidates]
    assert [p for _, p in candidates_found] == pytest.approx(
        [p for _, p in expected if p > 1e-30][:candidates], rel=1e-4
    )


@pytest.mark.parametrize("candidates", [0, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_nothing_is_drafted_where_only_unknown_tokens_are_possible(temperature: float, candidates: int) -> None:
    logits = np.full((1, 6), -math.inf, dtype=np.float32)
    logits[0, 4:] = 1
    query = Query(Sampling(temperature=temperature), 0, candidates)
    vocabulary = DraftVocabulary((2, 3, 5, 7))
    assert numpy_sampling.choose(logits, [query], vocabulary) == [NOTHING_KNOWN]
    assert keyed.choose(torch.from_numpy(logits), [query], vocabulary) == [NOTHING_KNOWN]


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
    (cut,) = keyed.choose(logits, query, known_tokens=known)
    (alone,) = keyed.choose(logits[:, :known], query)
    if cut is None or alone is None:
        # Nothing may come.
        assert cut is alone
        return
    assert (cut.token, [token for token, _ in cut.candidates]) == (
        alone.token,
        [token for token, _ in alone.candidates],
    )
    assert [p for _, p in cut.candidates] == pytest.approx([p for _, p in alone.candidates], abs=1e-6)
