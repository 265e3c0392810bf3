"""The keyed sampler on numpy, for engines without torch.

Every step follows `cosine_engine.torch.sampling`, in float32. Where the rounding of a sum decides between two
scores, the two samplers may choose differently.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from cosine_engine.base import Choice
from cosine_engine.kernels.noise import sampled
from cosine_engine.sampling import (
    COLDEST,
    NO_TOKENS,
    Changes,
    Floats,
    Integers,
    Query,
    Recipe,
    allowed_tokens,
    biases,
    choose_by_recipe,
    likelihood_of,
    nothing_known,
    penalties,
)
from cosine_engine.vocabulary import DraftVocabulary
from cosine_protocol.verify import Likelihood

COLUMN_TOKENS: Final = 64
"""The best tokens of a large vocabulary are searched in the columns with the best maxima, as on torch."""
WORTH_SPLITTING: Final = 1 << 14
"""Scores from which that is faster than a selection among all of them, as in torch's sampler."""


def choose(
    logits: Floats,
    queries: Sequence[Query],
    vocabulary: DraftVocabulary | None = None,
    *,
    known_tokens: int | None = None,
) -> list[Choice | None]:
    """Implements `cosine_engine.logits_engine.Sampler.choose`."""

    def choose_alike(block: Floats, asked: Sequence[Query], recipe: Recipe) -> list[Choice | None]:
        scores = _constrained(block, asked)
        is_shaped = any(query.sampling.shaping is not None for query in asked)
        if is_shaped:
            scores = _changed(scores, biases(asked, vocab_tokens=scores.shape[1]))
        if recipe.repetition_penalty != 1:
            scores = penalise(scores, asked, penalty=recipe.repetition_penalty)
        if is_shaped:
            for changes in penalties(asked, vocab_tokens=scores.shape[1]):
                scores = _changed(scores, changes)
        if recipe.temperature == 0:
            return [_greedy(row, query, vocabulary) for row, query in zip(scores, asked, strict=True)]
        rows = log_probabilities(scores, recipe)
        return [sampled(row, query, vocabulary) for row, query in zip(rows, asked, strict=True)]

    if known_tokens is not None and known_tokens < logits.shape[1]:
        logits = logits.copy()
        logits[:, known_tokens:] = -math.inf
    # Infinity and NaN are found in the result, row by row.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return choose_by_recipe(logits, queries, choose_alike)


def likelihoods_after(
    logits: Floats, tokens: Sequence[int], *, top: int, known_tokens: int | None = None
) -> list[Likelihood]:
    """Implements `cosine_engine.logits_engine.Sampler.likelihoods_after`."""
    found = []
    for row, token in zip(logits[:, :known_tokens], tokens, strict=True):
        log_probs = row - row.max()
        log_probs -= np.float32(math.log(float(np.exp(log_probs).sum(dtype=np.float64))))
        best = best_tokens(log_probs, min(top, len(log_probs))) if top else NO_TOKENS
        likely = list(zip(best.tolist(), log_probs[best].tolist(), strict=True))
        found.append(likelihood_of(float(log_probs[token]), likely))
    return found


def mean_nll(logits: Floats, tokens: Sequence[int]) -> float:
    """Implements `cosine_engine.logits_engine.Sampler.mean_nll`."""
    total = 0.0
    # NaN for logits with NaN.
    with np.errstate(invalid="ignore"):
        for row, token in zip(logits, tokens, strict=True):
            peak = row.max()
            total += float(np.log(np.exp(row - peak).sum(dtype=np.float64)) - (float(row[token]) - float(peak)))
    return total / len(tokens)


def _greedy(scores: Floats, query: Query, vocabulary: DraftVocabulary | None) -> Choice | None:
    """Return the choice after one row of scores [vocab]."""
    known = scores if vocabulary is None else scores[: vocabulary.reserved_id]
    if not math.isfinite(known.max()):
        return nothing_known(scores, known)
    ids = best_tokens(known, min(max(2, query.candidates), len(known))).tolist()
    values = known[ids].tolist()
    margin = values[0] - values[1] if len(values) > 1 else math.inf
    if margin == 0:
        # The selection among equal scores is undefined; the rule is the lowest id.
        best = int(known.argmax())
        ids = [best, *(token for token in ids if token != best)][: len(ids)]
    if not query.candidates:
        return Choice(ids[0], margin)
    total = values[0] + math.log(float(np.exp(scores - np.float32(values[0])).sum()))
    candidates = tuple(
        (token, min(1.0, math.exp(value - total)))
        for token, value in zip(ids[: query.candidates], values, strict=False)
        if value > -math.inf
    )
    return Choice(ids[0], margin, candidates)


def _constrained(scores: Floats, queries: Sequence[Query]) -> Floats:
    """Return scores [rows, vocab] with -inf for the tokens that constraints rule out."""
    bits = allowed_tokens(queries, vocab_tokens=scores.shape[1])
    if bits is None:
        return scores
    is_allowed = np.unpackbits(bits, axis=1, count=scores.shape[1], bitorder="little")
    return np.where(is_allowed, scores, np.float32(-math.inf))


def _changed(scores: Floats, changes: Changes) -> Floats:
    """Return scores [rows, vocab] with changes added."""
    if not len(changes.rows):
        return scores
    scores = scores.copy()
    scores[changes.rows, changes.tokens] += changes.values
    return scores


def penalise(scores: Floats, queries: Sequence[Query], *, penalty: float) -> Floats:
    """Return penalised scores [rows, vocab]: positive ones divided, negative multiplied."""
    scores = scores.copy()
    prefixes = {id(query.prefix): np.unique(np.array(query.prefix, dtype=np.int64)) for query in queries}
    for row, query in zip(scores, queries, strict=True):
        seen = np.union1d(prefixes[id(query.prefix)], np.array(query.path, dtype=np.int64))
        row[seen] = np.where(row[seen] < 0, row[seen] * np.float32(penalty), row[seen] / np.float32(penalty))
    return scores


def log_probabilities(scores: Floats, recipe: Recipe) -> Floats:
    """Return the log of the sampled distribution, [rows, vocab]; -inf where a filter rules a token out."""
    # Shifted by the maximum, so that a tiny temperature gives -inf to the rest and never inf - inf.
    scores = scores - scores.max(-1, keepdims=True)
    scores /= np.float32(max(recipe.temperature, COLDEST))
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
    # The best score is 0, which no filter rules out.
    scores -= np.log(np.exp(scores).sum(-1, keepdims=True))
    return scores


def _keep_top_p(scores: Floats, top_p: float) -> Floats:
    """Rule out the least likely tokens whose joint probability is at most 1 - `top_p`; the best one stays."""
    rising = np.sort(scores)
    # Summed in float64 and rounded, as by torch on a CPU.
    joint = np.cumsum(_softmax(rising), dtype=np.float64).astype(np.float32)
    tail = min(int(np.count_nonzero(joint <= np.float32(1 - top_p))), len(rising) - 1)
    lowest_kept = rising[tail]
    is_ruled_out = scores < lowest_kept
    # In a stable order the lower of equal ids come first, so they are ruled out first.
    ties = np.flatnonzero(scores == lowest_kept)
    is_ruled_out[ties[: tail - int(np.count_nonzero(is_ruled_out))]] = True
    return np.where(is_ruled_out, np.float32(-math.inf), scores)


def _softmax(scores: Floats) -> Floats:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    shares: Floats = weights / weights.sum(-1, keepdims=True)
    return shares


def best_tokens(scores: Floats, count: int) -> Integers:
    """Return the ids of the `count` best scores [vocab], the best first, and of equal ones the lowest id."""
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
