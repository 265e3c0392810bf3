"""The keyed sampler of `cosine_node.engine.sampling` on numpy, for engines that run without torch.

The rule is the same in every step, in float32. Where the rounding of a sum decides between two scores, the two
samplers may choose differently.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cosine_node.engine.base import Choice
from cosine_node.engine.draft_vocabulary import RESERVED_NOISE, DraftVocabulary
from cosine_node.engine.recipe import COLDEST, Query, Recipe, rows_by_recipe
from cosine_protocol.noise import GAMMA, MIX_A, MIX_B, position_key

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

REUSED_POSITIONS: Final = 128
"""Bounds memory: noise vectors kept. The siblings of a tree and the next pass need the same positions again."""
COLUMN_TOKENS: Final = 64
"""The best tokens of a large vocabulary are looked for in the columns with the best maxima, as on torch."""
WORTH_SPLITTING: Final = 1 << 14
"""Scores from which that is faster than to select among all of them: so many as in torch's sampler."""


def choose(
    logits: Floats, queries: Sequence[Query], vocabulary: DraftVocabulary | None = None
) -> list[Choice | None]:
    """One choice for each row of `logits` [rows, vocab]; None where the row holds NaN or infinity.

    Infinity here is +inf, or a row of nothing but -inf: a model may rule out single tokens by -inf. With a
    `vocabulary`, ids are a drafter's own and have the noise of the target's; reserved ids are never chosen, but
    their probability lessens that of the candidates.
    """
    choices: list[Choice | None] = [None] * len(queries)
    # What is infinite or NaN is found in the result, row by row.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for recipe, rows in rows_by_recipe(queries).items():
            block = logits if len(rows) == len(queries) else logits[rows]
            asked = [queries[row] for row in rows]
            for row, choice in zip(rows, _choose_alike(block, asked, recipe, vocabulary), strict=True):
                choices[row] = choice
    return choices


def _choose_alike(
    logits: Floats, queries: Sequence[Query], recipe: Recipe, vocabulary: DraftVocabulary | None
) -> list[Choice | None]:
    scores = logits
    if recipe.repetition_penalty != 1:
        scores = penalise(scores, queries, penalty=recipe.repetition_penalty)
    if recipe.temperature > 0:
        # The maximum of log-probabilities plus Gumbel noise is a sample (Gumbel-max; Maddison et al. 2014).
        vocab_tokens = scores.shape[1]
        noise = [
            gumbel_noise(
                seed=query.sampling.seed, position=query.position, vocab_tokens=vocab_tokens, vocabulary=vocabulary
            )
            for query in queries
        ]
        scores = log_probabilities(scores, recipe) + np.stack(noise)
    known = scores.shape[1] if vocabulary is None else vocabulary.reserved_id
    return [_choice(row, query.candidates, known) for row, query in zip(scores, queries, strict=True)]


def penalise(scores: Floats, queries: Sequence[Query], *, penalty: float) -> Floats:
    """Scores [rows, vocab] with what a query has seen less likely: positive ones divided, negative multiplied."""
    scores = scores.copy()
    prefixes = {id(query.prefix): np.unique(np.array(query.prefix, dtype=np.int64)) for query in queries}
    for row, query in zip(scores, queries, strict=True):
        seen = np.union1d(prefixes[id(query.prefix)], np.array(query.path, dtype=np.int64))
        row[seen] = np.where(row[seen] < 0, row[seen] * np.float32(penalty), row[seen] / np.float32(penalty))
    return scores


def log_probabilities(scores: Floats, recipe: Recipe) -> Floats:
    """Log of the distribution that is sampled from, [rows, vocab]; -inf where a filter rules a token out."""
    # Shifted by the maximum, so that a tiny temperature gives -inf to the rest and never inf - inf.
    scores = (scores - scores.max(-1, keepdims=True)) / np.float32(max(recipe.temperature, COLDEST))
    if recipe.top_k:
        count = min(recipe.top_k, scores.shape[-1])
        lowest_kept = np.partition(scores, -count, axis=-1)[..., -count, None]
        scores = np.where(scores < lowest_kept, np.float32(-math.inf), scores)
    if recipe.top_p < 1:
        scores = np.stack([_keep_top_p(row, recipe.top_p) for row in scores])
    if recipe.min_p > 0:
        probabilities = _softmax(scores)
        is_unlikely = probabilities < np.float32(recipe.min_p) * probabilities.max(-1, keepdims=True)
        scores = np.where(is_unlikely, np.float32(-math.inf), scores)
    shifted = scores - scores.max(-1, keepdims=True)
    normalised: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return normalised


def _keep_top_p(scores: Floats, top_p: float) -> Floats:
    """Rule out the least likely tokens whose joint probability is at most 1 - `top_p`; the best one stays."""
    rising = np.sort(scores)
    # Added up in float64 and rounded, as torch does on a CPU.
    joint = np.cumsum(_softmax(rising), dtype=np.float64).astype(np.float32)
    tail = min(int(np.count_nonzero(joint <= np.float32(1 - top_p))), len(rising) - 1)
    lowest_kept = rising[tail]
    is_ruled_out = scores < lowest_kept
    # Of equal scores the lower ids stand first in a stable order, so they go first.
    ties = np.flatnonzero(scores == lowest_kept)
    is_ruled_out[ties[: tail - int(np.count_nonzero(is_ruled_out))]] = True
    return np.where(is_ruled_out, np.float32(-math.inf), scores)


def _softmax(scores: Floats) -> Floats:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    shares: Floats = weights / weights.sum(-1, keepdims=True)
    return shares


@lru_cache(maxsize=8)
def _token_steps(vocab_tokens: int, vocabulary: DraftVocabulary | None) -> npt.NDArray[np.uint64]:
    ids = range(vocab_tokens) if vocabulary is None else vocabulary.target_ids
    return (np.array(ids, dtype=np.uint64) + np.uint64(1)) * np.uint64(GAMMA)


@lru_cache(maxsize=REUSED_POSITIONS)
def gumbel_noise(
    *, seed: int, position: int, vocab_tokens: int, vocabulary: DraftVocabulary | None = None
) -> Floats:
    """Standard Gumbel noise of every token at one output position, float32 [vocab]; shared, read-only.

    A drafter's own ids have the noise of the target's ids in its `vocabulary`, reserved ones `RESERVED_NOISE`.
    `cosine_protocol.noise` is the reference. The logarithms are numpy's, good to an ulp or so of float64, before
    the one rounding to float32.
    """
    # Words of 64 bits wrap around.
    words: Any = _token_steps(vocab_tokens, vocabulary) + np.uint64(position_key(seed=seed, position=position))
    words = (words ^ (words >> np.uint64(30))) * np.uint64(MIX_A)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(MIX_B)
    words ^= words >> np.uint64(31)
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    noise: Floats = np.full(vocab_tokens, RESERVED_NOISE, dtype=np.float32)
    noise[: len(words)] = -np.log(-np.log(uniform))
    noise.flags.writeable = False
    return noise


def best_tokens(scores: Floats, count: int) -> Integers:
    """The ids of the `count` best scores [vocab], the best first, and of equal ones the lowest id."""
    columns = -(-len(scores) // COLUMN_TOKENS)
    ids = np.arange(len(scores))
    if len(scores) >= WORTH_SPLITTING and columns > count:
        padded = np.full(columns * COLUMN_TOKENS, -math.inf, dtype=np.float32)
        padded[: len(scores)] = scores
        best_columns = np.argpartition(padded.reshape(COLUMN_TOKENS, columns).max(0), -count)[-count:]
        ids = (best_columns[:, None] + np.arange(COLUMN_TOKENS) * columns).ravel()
        ids = ids[ids < len(scores)]
    found = ids[np.argpartition(scores[ids], -count)[-count:]]
    return found[np.lexsort((found, -scores[found]))]


def _choice(all_scores: Floats, count: int, known_tokens: int) -> Choice | None:
    """The choice after one row of scores [vocab], with `count` candidates, all of them known tokens."""
    scores = all_scores[:known_tokens]
    if not math.isfinite(scores.max()):
        return None
    ids = best_tokens(scores, min(max(2, count), len(scores))).tolist()
    values = scores[ids].tolist()
    margin = values[0] - values[1] if len(values) > 1 else math.inf
    if margin == 0:
        # Which of several equal scores were selected is left open; the rule is the lowest id.
        best = int(scores.argmax())
        ids = [best, *(token for token in ids if token != best)][: len(ids)]
    candidates: tuple[tuple[int, float], ...] = ()
    if count:
        total = values[0] + math.log(float(np.exp(all_scores - np.float32(values[0])).sum()))
        candidates = tuple(
            (token, min(1.0, math.exp(value - total)))
            for token, value in zip(ids[:count], values, strict=False)
            if value > -math.inf
        )
    return Choice(ids[0], margin, candidates)
