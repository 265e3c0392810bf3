"""The keyed sampler: from logits to choices (docs/design.md, "The output is a function of the request").

Its steps are constraint, biases, penalties, temperature, top-k, top-p, min-p, renormalisation, noise and argmax; at
temperature 0 constraint, biases, penalties and argmax. Everything is computed in float32, because drafters and
target must resolve near-ties in the same way.
"""

import math
from collections.abc import Sequence
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from cosine_engine.base import Choice
from cosine_engine.kernels.noise import sampled
from cosine_engine.sampling import (
    COLDEST,
    NOTHING_KNOWN,
    Changes,
    NoiseKey,
    Query,
    Recipe,
    allowed_tokens,
    biases,
    choose_by_recipe,
    likelihood_of,
    penalties,
)
from cosine_engine.vocabulary import RESERVED_NOISE, DraftVocabulary
from cosine_protocol.noise import GAMMA, MIX_A, MIX_B, position_key
from cosine_protocol.verify import Likelihood

# 64-bit words are in int64 tensors: products wrap around, and logical shifts are arithmetic shifts with the copied
# sign bits masked off.


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _shift_right(words: Tensor, bits: int) -> Tensor:
    return (words >> bits) & ((1 << (64 - bits)) - 1)


@lru_cache(maxsize=8)
def _token_steps(vocab_tokens: int, vocabulary: DraftVocabulary | None, device: torch.device) -> Tensor:
    ids = range(vocab_tokens) if vocabulary is None else vocabulary.target_ids
    return (torch.tensor(ids, dtype=torch.int64, device=device) + 1) * _signed(GAMMA)


def gumbel_noise(keys: Sequence[NoiseKey], device: torch.device) -> Tensor:
    """Return the standard Gumbel noise of every token at output positions, float32 [keys, vocab].

    Its bits are those of `cosine_protocol.noise`. A drafter's own ids have the noise of the target's ids in its
    vocabulary; reserved ids have `RESERVED_NOISE`. The logarithms are computed by the device in float64, accurate
    to an ulp, and rounded to float32 once.
    """
    rank = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    # MPS has no float64, so its noise is computed on the CPU.
    where = torch.device("cpu") if device.type == "mps" else device
    steps = _token_steps(keys[0].tokens, keys[0].vocabulary, where)
    drawn = list(rank)
    # Blocks bound the memory of float64 intermediates.
    blocks = [_noise_after(steps, drawn[start : start + 16]) for start in range(0, len(drawn), 16)]
    noise = torch.cat(blocks).to(device)[[rank[key] for key in keys]]
    return F.pad(noise, (0, keys[0].tokens - noise.shape[1]), value=RESERVED_NOISE)


def _noise_after(token_steps: Tensor, keys: Sequence[NoiseKey]) -> Tensor:
    """Return noise, float32 [keys, tokens], from token steps [tokens]."""
    starts = [_signed(position_key(seed=key.seed, position=key.position)) for key in keys]
    words = token_steps + torch.tensor(starts, device=token_steps.device)[:, None]
    words = (words ^ _shift_right(words, 30)) * _signed(MIX_A)
    words = (words ^ _shift_right(words, 27)) * _signed(MIX_B)
    words = words ^ _shift_right(words, 31)
    uniform = (_shift_right(words, 11).to(torch.float64) + 0.5) * 2.0**-53
    return uniform.log_().neg_().log_().neg_().to(torch.float32)


def choose(
    logits: Tensor,
    queries: Sequence[Query],
    vocabulary: DraftVocabulary | None = None,
    *,
    known_tokens: int | None = None,
) -> list[Choice | None]:
    """Implements `cosine_engine.logits_engine.Sampler.choose`."""
    if known_tokens is not None and known_tokens < logits.shape[1]:
        logits = F.pad(logits[:, :known_tokens], (0, logits.shape[1] - known_tokens), value=-math.inf)
    return choose_by_recipe(logits, queries, partial(_choose_alike, vocabulary=vocabulary))


def _choose_alike(
    logits: Tensor, queries: Sequence[Query], recipe: Recipe, *, vocabulary: DraftVocabulary | None
) -> list[Choice | None]:
    scores = _constrained(logits.float(), queries)
    is_shaped = any(query.sampling.shaping is not None for query in queries)
    if is_shaped:
        scores = _changed(scores, biases(queries, vocab_tokens=scores.shape[1]))
    if recipe.repetition_penalty != 1:
        # To make seen tokens less likely, positive scores are divided and negative ones multiplied.
        penalty = recipe.repetition_penalty
        lessened = torch.where(scores < 0, scores * penalty, scores / penalty)
        scores = torch.where(_seen(scores, queries), lessened, scores)
    if is_shaped:
        for changes in penalties(queries, vocab_tokens=scores.shape[1]):
            scores = _changed(scores, changes)
    if recipe.temperature > 0 and scores.device.type == "cpu":
        rows = log_probabilities(scores, recipe).numpy()
        return [sampled(row, query, vocabulary) for row, query in zip(rows, queries, strict=True)]
    if recipe.temperature > 0:
        # The maximum of log-probabilities plus Gumbel noise is a sample (Gumbel-max; Maddison et al. 2014).
        keys = [NoiseKey(each.sampling.seed, each.position, scores.shape[1], vocabulary) for each in queries]
        scores = log_probabilities(scores, recipe) + gumbel_noise(keys, scores.device)
    known = scores if vocabulary is None else scores[:, : vocabulary.reserved_id]
    most = max(query.candidates for query in queries)
    values, ids = best_tokens(known, min(max(2, most), known.shape[1]))
    totals = torch.logsumexp(scores, -1, keepdim=True) if most else values[:, :1]
    host = _to_host(torch.cat([values, totals], 1), ids)
    choices = [_choice(known[row], *host[row], count=query.candidates) for row, query in enumerate(queries)]
    for row, choice in enumerate(choices):
        if choice is None and host[row][0][0] == -math.inf and scores[row].amax().isfinite():
            choices[row] = NOTHING_KNOWN
    return choices


def likelihoods_after(
    logits: Tensor, tokens: Sequence[int], *, top: int, known_tokens: int | None = None
) -> list[Likelihood]:
    """Implements `cosine_engine.logits_engine.Sampler.likelihoods_after`."""
    found = []
    targets = torch.tensor(tokens, dtype=torch.int64, device=logits.device)
    # Blocks bound the memory of float32 log-probabilities.
    for block, asked in zip(torch.split(logits, 64), torch.split(targets, 64), strict=True):
        # Each row is reduced by itself, so that its bits do not depend on the block.
        log_probs = block[:, :known_tokens].float().log_softmax(-1)
        own = log_probs.gather(1, asked[:, None])
        values, ids = best_tokens(log_probs, min(max(1, top), log_probs.shape[1]))
        for (value, *best), names in _to_host(torch.cat([own, values], 1), ids):
            found.append(likelihood_of(value, list(zip(names, best, strict=True))[:top]))
    return found


def mean_nll(logits: Tensor, tokens: Sequence[int]) -> float:
    """Implements `cosine_engine.logits_engine.Sampler.mean_nll`."""
    targets = torch.tensor(tokens, dtype=torch.int64, device=logits.device)
    # Blocks bound the memory of float32 log-probabilities of long prompts.
    blocks = zip(torch.split(logits, 256), torch.split(targets, 256), strict=True)
    losses = [F.cross_entropy(block.float(), target, reduction="sum") for block, target in blocks]
    return float(torch.stack(losses).sum()) / len(tokens)


def _constrained(scores: Tensor, queries: Sequence[Query]) -> Tensor:
    """Return scores [rows, vocab] with -inf for tokens that constraints exclude."""
    found = allowed_tokens(queries, vocab_tokens=scores.shape[1])
    if found is None:
        return scores
    # Copied to the device as bits, an eighth of a byte mask.
    packed = torch.from_numpy(found).to(scores.device)
    bits = (packed[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=scores.device)) & 1
    return scores.masked_fill(bits.flatten(1)[:, : scores.shape[1]] == 0, -math.inf)


def _changed(scores: Tensor, changes: Changes) -> Tensor:
    """Return scores [rows, vocab] with changes added."""
    if not len(changes.rows):
        return scores
    places = tuple(torch.from_numpy(each).to(scores.device) for each in (changes.rows, changes.tokens))
    # Places are unique, so the order does not matter.
    return scores.index_put(places, scores[places] + torch.from_numpy(changes.values).to(scores.device))


def _seen(scores: Tensor, queries: Sequence[Query]) -> Tensor:
    """Return a mask [rows, vocab] of the tokens in each query's prefix and path."""
    seen = torch.zeros(scores.shape, dtype=torch.bool)
    first_with: dict[int, int] = {}
    for row, query in enumerate(queries):
        first = first_with.setdefault(id(query.prefix), row)
        if first == row:
            seen[row, torch.tensor(query.prefix, dtype=torch.int64)] = True
        else:
            seen[row] = seen[first]
    # Paths come last, because other rows copy the mask of a prefix.
    for row, query in enumerate(queries):
        seen[row, torch.tensor(query.path, dtype=torch.int64)] = True
    return seen.to(scores.device)


def log_probabilities(scores: Tensor, recipe: Recipe) -> Tensor:
    """Return the log of the sampled distribution [rows, vocab]; -inf for tokens that a filter excludes."""
    # Shifted by the maximum, so that a tiny temperature gives -inf for other tokens and never inf - inf.
    scores = (scores - scores.amax(-1, keepdim=True)) / max(recipe.temperature, COLDEST)
    if recipe.top_k:
        # Ties with the last kept token stay.
        lowest_kept = scores.topk(min(recipe.top_k, scores.shape[-1])).values[..., -1:]
        scores = scores.masked_fill(scores < lowest_kept, -math.inf)
    if recipe.top_p < 1:
        # The least likely tokens with a joint probability of at most 1 - `top_p` are excluded; the best one stays.
        rising, ids = scores.sort(dim=-1, stable=True)
        is_tail = rising.softmax(-1).cumsum(-1) <= 1 - recipe.top_p
        is_tail[..., -1] = False
        scores = scores.masked_fill(torch.empty_like(is_tail).scatter_(-1, ids, is_tail), -math.inf)
    if recipe.min_p > 0:
        probabilities = scores.softmax(-1)
        is_unlikely = probabilities < recipe.min_p * probabilities.amax(-1, keepdim=True)
        scores = scores.masked_fill(is_unlikely, -math.inf)
    return scores.log_softmax(-1)


def best_tokens(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` best scores of each row and their ids, both [rows, count], with ties in any order.

    If a large vocabulary is split into columns, its best tokens are in the columns with the best maxima, and maxima
    are an order of magnitude cheaper than `topk`.
    """
    # Columns of this size are faster from 16,384 scores on (measured on a CPU).
    column_tokens = 64
    columns = -(-scores.shape[1] // column_tokens)
    if scores.numel() < 1 << 14 or columns < count:
        values, ids = scores.topk(count)
        return values, ids
    padding = columns * column_tokens - scores.shape[1]
    padded = F.pad(scores, (0, padding), value=-math.inf) if padding else scores
    table = padded.view(len(scores), column_tokens, columns)
    best_columns = table.amax(1).topk(count).indices
    entries = table.gather(2, best_columns[:, None].expand(-1, column_tokens, -1)).flatten(1)
    values, picked = entries.topk(count)
    return values, picked // count * columns + best_columns.gather(1, picked % count)


def _to_host(floats: Tensor, ids: Tensor) -> list[tuple[list[float], list[int]]]:
    if ids.device.type == "cpu":
        return list(zip(floats.tolist(), ids.tolist(), strict=True))
    # Both are copied as one block of 32-bit words: one synchronisation with the device instead of two.
    words = torch.cat([floats.contiguous().view(torch.int32), ids.to(torch.int32)], 1).cpu()
    width = floats.shape[1]
    float_rows = words[:, :width].contiguous().view(torch.float32).tolist()
    return list(zip(float_rows, words[:, width:].tolist(), strict=True))


def _choice(scores: Tensor, floats: list[float], ids: list[int], *, count: int) -> Choice | None:
    *values, total = floats
    if not math.isfinite(values[0]):
        return None
    margin = values[0] - values[1] if len(values) > 1 else math.inf
    ranked = list(zip(values, ids, strict=True))
    if margin == 0:
        # `topk` returns ties in any order; the rule is the lowest id.
        best = (values[0], int(scores.argmax()))
        others = sorted((pair for pair in ranked if pair != best), key=lambda pair: (-pair[0], pair[1]))
        ranked = [best, *others][: len(ranked)]
    candidates = tuple(
        (token, min(1.0, math.exp(value - total))) for value, token in ranked[:count] if value > -math.inf
    )
    return Choice(ranked[0][1], margin, candidates)
