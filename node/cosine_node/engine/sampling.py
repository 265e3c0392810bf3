"""The parameters of a keyed choice, for all samplers, and the sampler on numpy for engines without torch.

Every step follows `cosine_node.engine.torch.sampling`, in float32. Where the rounding of a sum decides between two
scores, the two samplers may choose differently.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from cosine_node.engine.base import BadLogits, Choice, Row
from cosine_node.engine.constraints.grammars import GrammarTooComplex, Mask
from cosine_node.engine.tree import SequenceTree
from cosine_node.engine.vocabulary import RESERVED_NOISE, DraftVocabulary
from cosine_protocol.errors import CosineError
from cosine_protocol.likelihoods import Likelihood, LikelyToken, surprisal_of
from cosine_protocol.noise import GAMMA, MIX_A, MIX_B, position_key
from cosine_protocol.request import Sampling, Shaping

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

COLDEST: Final = 1e-30
"""Smaller temperatures would underflow in float32; at this one all but exact ties are already greedy."""
NOTHING_KNOWN: Final = Choice(0, 0.0)
"""A drafter's choice if filters leave only tokens that its vocabulary lacks, without a meaningful token."""
REUSED_POSITIONS: Final = 128
"""Bounds memory: vectors of noise kept. The siblings of a tree and the next pass need the same positions again."""
COLUMN_TOKENS: Final = 64
"""The best tokens of a large vocabulary are searched in the columns with the best maxima, as on torch."""
WORTH_SPLITTING: Final = 1 << 14
"""Scores from which that is faster than a selection among all of them, as in torch's sampler."""
FEW_TOKENS: Final = 1 << 11
"""The noise of this number of tokens is drawn faster than contenders are determined."""
FAINTEST: Final = -40.0
"""Bound below which `_contenders` does not distinguish scores: noise is below 37, and exp(-77) a normal float32."""
ROUNDING: Final = 1.001
"""A thousand times the rounding of float32: a token in doubt is a contender."""


class Rows(Protocol):
    """Rows of logits in any library of tensors."""

    def __getitem__(self, rows: list[int], /) -> Self: ...


AnyRows = TypeVar("AnyRows", bound=Rows)


@dataclass(frozen=True, slots=True)
class Query:
    """The query of a choice from one row of logits: `candidates` tokens for output position `position`.

    `prefix` and `path` are the token ids that penalties see; rows of one sequence share `prefix`. The last
    `position` of them are the output so far. `allowed` are the tokens that a constraint allows, None for all.
    """

    sampling: Sampling
    position: int
    candidates: int = 0
    prefix: Sequence[int] = ()
    path: Sequence[int] = ()
    allowed: Mask | None = None


class Recipe(NamedTuple):
    """The sampling parameters that rows must share to be computed as one block."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float

    @classmethod
    def of(cls, sampling: Sampling) -> "Recipe":
        """The recipe of a request; at temperature 0 only the penalty counts."""
        if sampling.is_greedy:
            return cls(0.0, 0, 1.0, 0.0, sampling.repetition_penalty)
        return cls(
            sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.repetition_penalty
        )


def choose_by_recipe(
    logits: AnyRows,
    queries: Sequence[Query],
    choose_alike: Callable[[AnyRows, Sequence[Query], Recipe], Sequence[Choice | None]],
) -> list[Choice | None]:
    """Return one choice for each row of `logits`, computed in blocks of rows that share a recipe."""
    groups: dict[Recipe, list[int]] = {}
    for row, query in enumerate(queries):
        groups.setdefault(Recipe.of(query.sampling), []).append(row)
    choices: list[Choice | None] = [None] * len(queries)
    for recipe, rows in groups.items():
        block = logits if len(rows) == len(queries) else logits[rows]
        chosen = choose_alike(block, [queries[row] for row in rows], recipe)
        for row, choice in zip(rows, chosen, strict=True):
            choices[row] = choice
    return choices


def row_queries(tree: SequenceTree, row: Row) -> list[Query]:
    """Return the query for each scored node of a row in its tree."""
    queries = []
    names = row.nodes[row.scored_from :]
    for name, allowed in zip(names, allowed_after(tree, names), strict=True):
        position = tree.nodes[name].index + 1 - tree.prompt_tokens
        query = Query(tree.sampling, position, row.candidates, allowed=allowed)
        if tree.sampling.repetition_penalty != 1 or tree.sampling.shaping is not None:
            path = [node.token for node in tree.path(name)]
            query = Query(tree.sampling, position, row.candidates, tree.tokens, path, allowed)
        queries.append(query)
    return queries


def told_tokens(row: Row, choices: Sequence[Choice]) -> list[int]:
    """Return the tokens of a row with reported likelihoods: the following ones, or else the choices."""
    places = enumerate(row.followers, row.told_from - row.scored_from)
    return [choices[place].token if token is None else token for place, token in places]


def allowed_after(tree: SequenceTree, names: Sequence[int]) -> Sequence[Mask | None]:
    """Return the mask of a constraint after each of some nodes; all is allowed within the prompt.

    If the constraint is too complex, no token is allowed, so that there is no choice (`failure_of`).
    """
    masks: list[Mask | None] = [None] * len(names)
    if tree.guide is None:
        return masks
    # The choice after the last token of the prompt is the first one of the output.
    places = [i for i, name in enumerate(names) if tree.nodes[name].index + 1 >= tree.prompt_tokens]
    paths = [tuple(node.token for node in tree.path(names[i]) if node.index >= tree.prompt_tokens) for i in places]
    try:
        found = tree.guide.masks(tree.tokens[tree.prompt_tokens :], paths)
    except GrammarTooComplex:
        found = [np.zeros(1, np.uint8)] * len(paths)
    for place, mask in zip(places, found, strict=True):
        masks[place] = mask
    return masks


def failure_of(tree: SequenceTree, row: Row) -> CosineError:
    """Return why a row has no choice after one of its nodes."""
    if tree.guide is not None and tree.guide.fault:
        return GrammarTooComplex(tree.guide.fault)
    return BadLogits(f"The model gave NaN or infinite logits for sequence {row.sequence}.")


def allowed_tokens(queries: Sequence[Query], *, vocab_tokens: int) -> npt.NDArray[np.uint8] | None:
    """Return the allowed tokens of rows, bits of a byte as in `Mask`, [rows, bytes]; None if all rows allow all."""
    if all(query.allowed is None for query in queries):
        return None
    bits = np.zeros((len(queries), -(-vocab_tokens // 8)), np.uint8)
    for row, query in zip(bits, queries, strict=True):
        if query.allowed is None:
            row[:] = 0xFF
        else:
            known = query.allowed[: len(row)]
            row[: len(known)] = known
    return bits


def choose(
    logits: Floats,
    queries: Sequence[Query],
    vocabulary: DraftVocabulary | None = None,
    *,
    known_tokens: int | None = None,
) -> list[Choice | None]:
    """Return one choice for each row of `logits` [rows, vocab]; None for a row with NaN or infinity.

    Infinity is +inf, or a row with only -inf: a model may rule out single tokens by -inf. With a `vocabulary`, ids
    are a drafter's own and have the noise of the target's; reserved ids are never chosen, but their probability
    lessens that of the candidates. Ids from `known_tokens` on are rows without a token, which are not part of the
    distribution.
    """

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
        if recipe.temperature > 0:
            scores = log_probabilities(scores, recipe)
        choose_one = _sampled if recipe.temperature > 0 else _greedy
        return [choose_one(row, query, vocabulary) for row, query in zip(scores, asked, strict=True)]

    if known_tokens is not None and known_tokens < logits.shape[1]:
        logits = logits.copy()
        logits[:, known_tokens:] = -math.inf
    # Infinity and NaN are found in the result, row by row.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return choose_by_recipe(logits, queries, choose_alike)


def likelihood_of(log_probability: float, top: Sequence[tuple[int, float]]) -> Likelihood:
    """Return the likelihood of a token, with the likeliest ones and their log-probabilities in any order.

    Of equal ones the lowest id comes first.
    """
    likely = [LikelyToken(token, surprisal_of(value)) for token, value in top]
    likely.sort(key=lambda each: (each.surprisal, each.token))
    return Likelihood(surprisal_of(log_probability), tuple(likely))


def likelihood_after(logits: Floats, token: int, *, top: int, known_tokens: int | None = None) -> Likelihood:
    """Return the likelihood of a token by one row of `logits` [vocab], with the `top` likeliest tokens."""
    known = logits[:known_tokens]
    peak = known.max()
    log_probs = known - peak
    log_probs -= np.float32(math.log(float(np.exp(log_probs).sum(dtype=np.float64))))
    best = best_tokens(log_probs, min(top, len(log_probs))) if top else NO_TOKENS
    return likelihood_of(float(log_probs[token]), list(zip(best.tolist(), log_probs[best].tolist(), strict=True)))


def _greedy(scores: Floats, query: Query, vocabulary: DraftVocabulary | None) -> Choice | None:
    """Return the choice after one row of scores [vocab]."""
    known = scores if vocabulary is None else scores[: vocabulary.reserved_id]
    if query.candidates:
        return _ranked(scores, known, query.candidates)
    return _best(known) or nothing_known(scores, known)


def _sampled(log_probs: Floats, query: Query, vocabulary: DraftVocabulary | None) -> Choice | None:
    """Return the choice after one row of log-probabilities [vocab]: the best of them with noise added.

    That is a sample (Gumbel-max; Maddison et al. 2014). Without candidates only the best two count.
    """
    key = NoiseKey(query.sampling.seed, query.position, len(log_probs), vocabulary)
    known = log_probs if vocabulary is None else log_probs[: vocabulary.reserved_id]
    if query.candidates:
        scores = log_probs + gumbel_noise(key)
        return _ranked(scores, scores[: len(known)], query.candidates)
    ids = _contenders(known, key)
    return _best(known[ids] + noise_of(key, ids), ids) or nothing_known(log_probs, known)


def _constrained(scores: Floats, queries: Sequence[Query]) -> Floats:
    """Return scores [rows, vocab] with -inf for the tokens that constraints rule out."""
    bits = allowed_tokens(queries, vocab_tokens=scores.shape[1])
    if bits is None:
        return scores
    is_allowed = np.unpackbits(bits, axis=1, count=scores.shape[1], bitorder="little")
    return np.where(is_allowed, scores, np.float32(-math.inf))


class Changes(NamedTuple):
    """Changes of single scores: `values[i]` is added to that of `tokens[i]` in row `rows[i]`, each at most once."""

    rows: Integers
    tokens: Integers
    values: Floats

    @classmethod
    def of(cls, parts: Sequence[tuple[Integers, Floats]], *, vocab_tokens: int) -> "Changes":
        """Return the changes of some tokens in each row, without those that a smaller vocabulary lacks."""
        rows = np.repeat(np.arange(len(parts)), [len(tokens) for tokens, _ in parts])
        tokens = np.concatenate([tokens for tokens, _ in parts])
        values = np.concatenate([values for _, values in parts])
        known = tokens < vocab_tokens
        return cls(rows[known], tokens[known], values[known])


NO_TOKENS: Final = np.empty(0, dtype=np.int64)
NO_VALUES: Final = np.empty(0, dtype=np.float32)


def biases(queries: Sequence[Query], *, vocab_tokens: int) -> Changes:
    """Return the requested biases, and -inf for the tokens that must not come next.

    They come before all penalties, as in vLLM.
    """
    # Rows of one request share its shaping, which may be large.
    asked: dict[int, tuple[dict[int, float], Endings]] = {}
    parts: list[tuple[Integers, Floats]] = []
    for query in queries:
        part: dict[int, float] = {}
        if (shaping := query.sampling.shaping) is not None:
            if id(shaping) not in asked:
                asked[id(shaping)] = _sums(shaping), _endings(shaping)
            sums, endings = asked[id(shaping)]
            part = sums | dict.fromkeys(_ruled_out(query, shaping, endings), -math.inf)
        parts.append((np.array(list(part), dtype=np.int64), np.array(list(part.values()), dtype=np.float32)))
    return Changes.of(parts, vocab_tokens=vocab_tokens)


Endings = dict[int, dict[tuple[int, ...], set[int]]]
"""The last tokens of bad words by the number of tokens before them, and these."""


def _sums(shaping: Shaping) -> dict[int, float]:
    """The bias of each token."""
    sums: dict[int, float] = {}
    for one in shaping.logit_bias:
        sums[one.token] = sums.get(one.token, 0.0) + one.bias
    return sums


def _endings(shaping: Shaping) -> Endings:
    endings: Endings = {}
    for word in shaping.bad_words:
        if word:
            endings.setdefault(len(word) - 1, {}).setdefault(word[:-1], set()).add(word[-1])
    return endings


def _ruled_out(query: Query, shaping: Shaping, endings: Endings) -> set[int]:
    """Return the tokens that must not come next."""
    ruled_out = set(shaping.held_back) if query.position < shaping.min_tokens else set()
    prefix, path, needed = query.prefix, query.path, max(endings, default=0)
    tail = (*prefix[max(0, len(prefix) + len(path) - needed) :], *path)
    for before, lasts in endings.items():
        if before <= query.position:
            ruled_out |= lasts.get(tail[len(tail) - before :], set())
    return ruled_out


def penalties(queries: Sequence[Query], *, vocab_tokens: int) -> tuple[Changes, Changes]:
    """Return the frequency penalties, and the presence penalties, of the tokens in the output so far.

    They are OpenAI's: a token with c occurrences loses c times the first and once the second. They are subtracted
    one after the other, each rounded to float32, as in vLLM.
    """
    begun: dict[tuple[int, int], tuple[Integers, Integers]] = {}
    by_frequency: list[tuple[Integers, Floats]] = []
    by_presence: list[tuple[Integers, Floats]] = []
    for query in queries:
        shaping = query.sampling.shaping
        frequency, presence = (shaping.frequency_penalty, shaping.presence_penalty) if shaping else (0.0, 0.0)
        tokens, counts = NO_TOKENS, NO_TOKENS
        if frequency or presence:
            start = max(0, len(query.prefix) + len(query.path) - max(0, query.position))
            key = id(query.prefix), start
            if key not in begun:
                begun[key] = np.unique(np.array(query.prefix[start:], dtype=np.int64), return_counts=True)
            tokens, counts = _counted_with(begun[key], query.path[max(0, start - len(query.prefix)) :])
        taken = np.float32(-frequency) * counts.astype(np.float32)
        by_frequency.append((tokens, taken) if frequency else (NO_TOKENS, NO_VALUES))
        same = np.full(len(tokens), -presence, dtype=np.float32)
        by_presence.append((tokens, same) if presence else (NO_TOKENS, NO_VALUES))
    return Changes.of(by_frequency, vocab_tokens=vocab_tokens), Changes.of(by_presence, vocab_tokens=vocab_tokens)


def _counted_with(counted: tuple[Integers, Integers], path: Sequence[int]) -> tuple[Integers, Integers]:
    """Return tokens in rising order with their counts, including those of a path."""
    tokens, counts = counted
    if not len(path):
        return tokens, counts
    new, more = np.unique(np.array(path, dtype=np.int64), return_counts=True)
    places = np.searchsorted(tokens, new)
    is_known = np.isin(new, tokens, assume_unique=True) if len(tokens) else np.zeros(len(new), dtype=np.bool_)
    counts = counts.copy()
    counts[places[is_known]] += more[is_known]
    return (
        np.insert(tokens, places[~is_known], new[~is_known]),
        np.insert(counts, places[~is_known], more[~is_known]),
    )


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


@dataclass(frozen=True, slots=True)
class NoiseKey:
    """The parameters of the noise of a row; `vocabulary` has the target's ids of its `tokens` tokens."""

    seed: int
    position: int
    tokens: int
    vocabulary: DraftVocabulary | None = None


@lru_cache(maxsize=8)
def token_steps(vocab_tokens: int, vocabulary: DraftVocabulary | None) -> Words:
    ids = range(vocab_tokens) if vocabulary is None else vocabulary.target_ids
    return (np.array(ids, dtype=np.uint64) + np.uint64(1)) * np.uint64(GAMMA)


def _hashed(key: NoiseKey, ids: Integers | None = None) -> Words:
    """Return the hash words of these tokens, or of all known ones; `cosine_protocol.noise` is the reference."""
    steps = token_steps(key.tokens, key.vocabulary)
    words = steps if ids is None else steps[ids]
    words = words + np.uint64(position_key(seed=key.seed, position=key.position))
    for shift, factor in ((30, MIX_A), (27, MIX_B)):
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(31)
    return words


def noise_of(key: NoiseKey, ids: Integers | None = None) -> Floats:
    """Return the standard Gumbel noise -log(-log u) of these tokens, or of all known ones.

    The logarithms are numpy's, exact to about an ulp of float64, before the one rounding to float32.
    """
    uniform = ((_hashed(key, ids) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    noise: Floats = (-np.log(-np.log(uniform))).astype(np.float32)
    return noise


@lru_cache(maxsize=REUSED_POSITIONS)
def gumbel_noise(key: NoiseKey) -> Floats:
    """Return the noise of every token of a row, float32 [vocab]; shared, read-only.

    A drafter's own ids have the noise of the target's ids in its vocabulary, reserved ones `RESERVED_NOISE`.
    """
    noise: Floats = np.full(key.tokens, RESERVED_NOISE, dtype=np.float32)
    known = noise_of(key)
    noise[: len(known)] = known
    noise.flags.writeable = False
    return noise


@lru_cache(maxsize=REUSED_POSITIONS)
def _least_waits(key: NoiseKey) -> Floats:
    """Return a lower bound of -log u, 1 - u, of the upper 32 bits of u, float32 [known tokens]."""
    inverted = ~(_hashed(key) >> np.uint64(32)).astype(np.uint32)
    return inverted.astype(np.float32) * np.float32(2.0**-32)


def _contenders(log_probs: Floats, key: NoiseKey) -> Integers:
    """Return the ids, in rising order, of tokens that include those with the best two scores.

    A score log p - log(-log u) is the higher the smaller -log u / p is, a race of exponential waiting times. Tokens
    that cannot come in as early as two known ones need not be drawn exactly.
    """
    is_possible = log_probs > -math.inf
    if np.count_nonzero(is_possible) <= FEW_TOKENS:
        return np.flatnonzero(is_possible)
    race = _least_waits(key) / np.exp(log_probs)
    first = int(race.argmin())
    least, race[first] = race[first], math.inf
    two = np.array([first, race.argmin()])
    race[first] = least
    worse = float((log_probs[two] + noise_of(key, two)).min())
    # The negation includes NaN.
    if not worse > FAINTEST:
        return np.flatnonzero(is_possible)
    return np.flatnonzero(race <= ROUNDING * math.exp(-worse))


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


def _best(scores: Floats, ids: Integers | None = None) -> Choice | None:
    """Return the best choice, the lowest id of equal ones, without candidates; None if it is not finite.

    `ids` are those of the scores, in rising order, unless they are 0, 1, ...
    """
    if not len(scores):
        return None
    best = int(scores.argmax())
    top = float(scores[best])
    if not math.isfinite(top):
        return None
    second = max(scores[:best].max(initial=-math.inf), scores[best + 1 :].max(initial=-math.inf))
    return Choice(best if ids is None else int(ids[best]), top - float(second))


def _ranked(all_scores: Floats, scores: Floats, count: int) -> Choice | None:
    """Return the choice after one row of scores [vocab], with `count` candidates, all of them known tokens."""
    if not math.isfinite(scores.max()):
        return nothing_known(all_scores, scores)
    ids = best_tokens(scores, min(max(2, count), len(scores))).tolist()
    values = scores[ids].tolist()
    margin = values[0] - values[1] if len(values) > 1 else math.inf
    if margin == 0:
        # The selection among equal scores is undefined; the rule is the lowest id.
        best = int(scores.argmax())
        ids = [best, *(token for token in ids if token != best)][: len(ids)]
    total = values[0] + math.log(float(np.exp(all_scores - np.float32(values[0])).sum()))
    candidates = tuple(
        (token, min(1.0, math.exp(value - total)))
        for token, value in zip(ids[:count], values, strict=False)
        if value > -math.inf
    )
    return Choice(ids[0], margin, candidates)


def nothing_known(scores: Floats, known: Floats) -> Choice | None:
    """Return the choice if no known token is possible; None if the row is damaged."""
    is_lack = known.max() == -math.inf and math.isfinite(scores[len(known) :].max(initial=-math.inf))
    return NOTHING_KNOWN if is_lack else None
