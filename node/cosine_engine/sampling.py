"""The parameters and the noise of a keyed choice, for all samplers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from cosine_engine.base import BadLogits, Choice, Row
from cosine_engine.constraints.grammars import GrammarTooComplex, Mask
from cosine_engine.tree import SequenceTree
from cosine_engine.vocabulary import DraftVocabulary
from cosine_protocol.errors import CosineError
from cosine_protocol.noise import GAMMA, MIX_A, MIX_B, position_key
from cosine_protocol.request import Sampling, Shaping
from cosine_protocol.verify import Likelihood, TokenLikelihood, surprisal_of

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

COLDEST: Final = 1e-30
"""Smaller temperatures would underflow in float32; at this one all but exact ties are already greedy."""
NOTHING_KNOWN: Final = Choice(0, 0.0)
"""A drafter's choice if filters leave only tokens that its vocabulary lacks, without a meaningful token."""


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


def reported_tokens(row: Row, choices: Sequence[Choice]) -> list[int]:
    """Return the tokens of a row with reported likelihoods: the following ones, or else the choices."""
    places = enumerate(row.followers, row.reported_from - row.scored_from)
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


def likelihood_of(log_probability: float, top: Sequence[tuple[int, float]]) -> Likelihood:
    """Return the likelihood of a token, with the likeliest ones and their log-probabilities in any order.

    Of equal ones the lowest id comes first.
    """
    likely = [TokenLikelihood(token, surprisal_of(value)) for token, value in top]
    likely.sort(key=lambda each: (each.surprisal, each.token))
    return Likelihood(surprisal_of(log_probability), tuple(likely))


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


def noise_of(key: NoiseKey, ids: Integers) -> Floats:
    """Return the standard Gumbel noise -log(-log u) of these tokens; `cosine_protocol.noise` is the reference.

    The logarithms are numpy's, exact to about an ulp of float64, before the one rounding to float32.
    """
    steps = token_steps(key.tokens, key.vocabulary)[ids]
    words = steps + np.uint64(position_key(seed=key.seed, position=key.position))
    for shift, factor in ((30, MIX_A), (27, MIX_B)):
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(31)
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    noise: Floats = (-np.log(-np.log(uniform))).astype(np.float32)
    return noise


def nothing_known(scores: Floats, known: Floats) -> Choice | None:
    """Return the choice if no known token is possible; None if the row is damaged."""
    is_lack = known.max() == -math.inf and math.isfinite(scores[len(known) :].max(initial=-math.inf))
    return NOTHING_KNOWN if is_lack else None
