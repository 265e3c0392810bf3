"""The keyed sampler: its noise is the reference's, its filters are Hugging Face's, its choices follow the law."""

import math
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as hf

from cosine_node.engine.base import Choice
from cosine_node.engine.sampling import Query, Recipe
from cosine_node.engine.torch import sampling as keyed
from cosine_node.engine.torch.sampling import choose, drawn_together, gumbel_noise, gumbel_rows
from cosine_node.engine.vocabulary import DraftVocabulary
from cosine_protocol.noise import gumbel
from cosine_protocol.request import Sampling, Shaping, TokenBias
from tests.thoroughness import soak_rest

CPU = torch.device("cpu")
LAST_SEED = (1 << 64) - 1
DRAWS = 6000


@given(seed=st.integers(0, LAST_SEED), position=st.integers(-1000, 1 << 20))
@example(seed=LAST_SEED, position=0)
def test_noise_equals_the_reference_bit_for_bit(seed: int, position: int) -> None:
    noise = gumbel_noise(seed=seed, position=position, vocab_tokens=80, device=CPU)
    assert noise.dtype == torch.float32
    assert noise.tolist() == [gumbel(seed=seed, position=position, token=token) for token in range(80)]


def test_rows_drawn_together_are_those_drawn_one_by_one() -> None:
    places = [(seed, position) for seed in (0, 7, LAST_SEED) for position in range(-2, 9)]
    places += places[:5]
    together = drawn_together(places, vocab_tokens=300, device=CPU)
    assert torch.equal(together, gumbel_rows(places, vocab_tokens=300, device=CPU))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_draws_the_same_noise() -> None:
    for seed in (0, 1, 1 << 63, LAST_SEED):
        here = gumbel_noise(seed=seed, position=5, vocab_tokens=50_000, device=CPU)
        there = gumbel_noise(seed=seed, position=5, vocab_tokens=50_000, device=torch.device("cuda"))
        assert torch.equal(here, there.cpu())


def _logits(rows: int, vocab: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def _one(logits: list[float], sampling: Sampling, candidates: int = 0) -> Choice:
    choice = choose(torch.tensor([logits]), [Query(sampling, 0, candidates)])[0]
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


def test_the_penalty_equals_hugging_face() -> None:
    scores = _logits(8, 200)
    ids = torch.randint(0, 200, (8, 30), generator=torch.Generator().manual_seed(1))
    queries = [Query(Sampling(repetition_penalty=1.3), 0, 200, row[:20], row[20:]) for row in ids.tolist()]
    expected = hf.RepetitionPenaltyLogitsProcessor(1.3)(ids, scores).softmax(-1)
    for row, choice in zip(expected, choose(scores, queries), strict=True):
        assert choice is not None
        assert [p for _, p in sorted(choice.candidates)] == pytest.approx(row.tolist(), rel=1e-4)


@given(
    shaping=st.builds(
        Shaping,
        presence_penalty=st.sampled_from([0.0, 0.5, -2.0]),
        frequency_penalty=st.sampled_from([0.0, 0.25, 2.0, -0.3]),
        logit_bias=st.dictionaries(st.integers(0, 19), st.floats(-100, 100, width=32), max_size=6).map(
            lambda biases: tuple(TokenBias(*each) for each in biases.items())
        ),
        bad_words=st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=3).map(tuple), max_size=9).map(tuple),
        min_tokens=st.integers(0, 12),
        held_back=st.lists(st.integers(0, 19), max_size=3).map(tuple),
    ),
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


@pytest.mark.parametrize("vocab", [4096, 5000, 16_384])
@pytest.mark.parametrize("count", [2, 9])
def test_best_tokens_equal_topk(vocab: int, count: int) -> None:
    scores = _logits(5, vocab)
    scores[4, 17] = math.nan
    scores[3] = -math.inf
    scores[3, 11] = 0.0
    values, ids = keyed.best_tokens(scores, count)
    expected = scores.topk(count)
    assert torch.equal(values.nan_to_num(), expected.values.nan_to_num())
    assert torch.equal(ids[:3], expected.indices[:3])
    assert ids[3:, 0].tolist() == [11, 17]


def test_greedy_is_argmax_and_ties_go_to_the_lowest_id() -> None:
    assert _one([0.0, 2.0, 1.0, 2.0], Sampling()) == Choice(1, 0.0)
    assert _one([0.5, 2.0, 1.0], Sampling()) == Choice(1, 1.0)
    flat = choose(torch.zeros(3, 500), [Query(Sampling(), 0, 4)] * 3)
    assert all(choice is not None and choice.token == 0 for choice in flat)
    assert all(choice is not None and choice.candidates[0][0] == 0 for choice in flat)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1, top_p=0.9, top_k=3, min_p=0.1)])
def test_only_the_bad_row_fails(bad: float, sampling: Sampling) -> None:
    logits = _logits(3, 20)
    logits[1, 4] = bad
    choices = choose(logits, [Query(sampling, 0, 2)] * 3)
    assert choices[1] is None
    assert choices[0] is not None
    assert choices[2] is not None


def test_penalty_sees_prefix_and_own_path_only() -> None:
    sampling = Sampling(repetition_penalty=10.0)
    prefix = [0]
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.5]]).repeat(3, 1)
    queries = [Query(sampling, 0, 0, prefix, path) for path in ([], [1], [1, 2])]
    assert [choice.token for choice in choose(logits, queries) if choice] == [1, 2, 3]


@pytest.mark.parametrize(
    "sampling",
    soak_rest(
        [
            Sampling(temperature=0.6),
            Sampling(temperature=1.0, top_p=0.8),
            Sampling(temperature=1.0),
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


def test_own_ids_have_the_noise_of_the_targets() -> None:
    vocabulary = DraftVocabulary((7, 40, 41))
    sampling = Sampling(temperature=1.0, seed=2)
    for position in range(20):
        noise = [gumbel(seed=2, position=position, token=token) for token in vocabulary.target_ids]
        (choice,) = choose(torch.zeros(1, 4), [Query(sampling, position)], vocabulary)
        assert choice is not None
        assert choice.token == noise.index(max(noise))
