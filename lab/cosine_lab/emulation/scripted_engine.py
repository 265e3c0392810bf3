"""A deterministic engine without weights or torch, for tests and simulation.

Its "logits" are a hash of the last few tokens of a path, its choices follow the rule of real engines
(docs/design.md, "The output is a function of the request"), and a twin with a `fidelity` below 1 is a drafter with
that accuracy.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from heapq import nlargest
from typing import Final

import numpy as np

from cosine_engine.base import Choice, Row, RowResult
from cosine_engine.constraints.grammars import Grammars
from cosine_engine.kv_pool import PagePool
from cosine_engine.paged import PagedEngine
from cosine_engine.sampling import allowed_after, failure_of, likelihood_of, reported_tokens
from cosine_engine.tree import SequenceTree
from cosine_protocol.errors import UsageError
from cosine_protocol.noise import gumbel, mix64, position_key, token_bits
from cosine_protocol.request import Sampling, Shaping
from cosine_protocol.verify import Likelihood

ORDER: Final = 3
"""Tokens of the path that the logits depend on."""
SPREAD: Final = 8.0
"""Upper bound of logits, above 0."""
UNIT: Final = 2.0**-53
"""The step of a float64 in [0.5, 1): 53 random bits are a uniform number below 1."""

KEPT: Final = 32_768
"""All paths of `ORDER` tokens of 32, the vocabulary of tests: their logits take 36 MB."""

Logits = tuple[float, ...]


@lru_cache(maxsize=KEPT)
def scripted_logits(*, model_seed: int, vocab_tokens: int, tail: tuple[int, ...]) -> Logits:
    """Return the logits after a path that ends in `tail`: uniform in [0, SPREAD), one for each token."""
    key = _key_after(tail, seed=model_seed)
    return tuple(_uniform(key, token) * SPREAD for token in range(vocab_tokens))


def _key_after(tail: tuple[int, ...], *, seed: int) -> int:
    state = seed
    for previous in tail:
        state = mix64(state ^ (previous + 1))
    return position_key(seed=state, position=len(tail))


def _uniform(key: int, token: int) -> float:
    return (token_bits(key, token) >> 11) * UNIT


class ScriptedEngine(PagedEngine):
    """Implements `cosine_engine.base.Engine`, including checks of the contract.

    Engines with equal `model_seed` and `vocab_tokens` are one target. With `fidelity` f an engine gives its
    target's choice after a share of about f of all paths; after the others the target's token comes second in half
    of the cases, third in a quarter, and so on. `drafter_seed` determines the paths and ranks.
    """

    tells_likelihoods = True

    def __init__(
        self,
        *,
        vocab_tokens: int = 64,
        context_tokens: int = 4096,
        pool_tokens: int = 65_536,
        model_seed: int = 0,
        fidelity: float = 1.0,
        drafter_seed: int = 0,
        grammars: Grammars | None = None,
    ) -> None:
        if not 0 <= fidelity <= 1:
            raise UsageError(f"fidelity must lie between 0 and 1, not {fidelity}.")
        super().__init__(
            PagePool(tokens=pool_tokens),
            vocab_tokens=vocab_tokens,
            context_tokens=context_tokens,
            numerics="scripted",
            grammars=grammars,
        )
        self._model_seed = model_seed
        self._fidelity = fidelity
        self._drafter_seed = mix64(drafter_seed + 1)
        self.passes = 0

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """Perform one pass. Raises `LocalProtocolError` or `OutOfPages` without feeding anything."""
        trees = self.feed(rows)
        self.passes += bool(rows)
        return [self._result(tree, row) for tree, row in zip(trees, rows, strict=True)]

    def logits_after(self, tail: Sequence[int]) -> Logits:
        """Return the target's logits after a path of tokens, the last `ORDER` of which matter."""
        return scripted_logits(
            model_seed=self._model_seed, vocab_tokens=self.vocab_tokens, tail=tuple(tail[-ORDER:])
        )

    def demotion(self, tail: Sequence[int]) -> int:
        """Return the number of ranks by which the target's best token is too low after a path; 0 if right."""
        if self._fidelity == 1:
            return 0
        key = _key_after(tuple(tail[-ORDER:]), seed=self._drafter_seed)
        if _uniform(key, 0) < self._fidelity:
            return 0
        return 1 + int(-math.log2(1 - _uniform(key, 1)))

    def _result(self, tree: SequenceTree, row: Row) -> RowResult:
        choices = tuple(self._choice(tree, name, row.candidates) for name in row.nodes[row.scored_from :])
        if tree.guide is not None and tree.guide.fault:
            return RowResult(choices=(), error=failure_of(tree, row))
        told = zip(row.nodes[row.reported_from :], reported_tokens(row, choices), strict=True)
        return RowResult(
            choices=choices,
            nll=self._nll(tree, row) if row.wants_nll else None,
            likelihoods=tuple(self._likelihood(tree, name, token, row.top) for name, token in told),
        )

    def _likelihood(self, tree: SequenceTree, name: int, token: int, top: int) -> Likelihood:
        logs = _log_softmax(self.logits_after(_tail(tree, name)))
        return likelihood_of(logs[token], [(each, logs[each]) for each in _best(logs, top)])

    def _choice(self, tree: SequenceTree, name: int, candidates: int) -> Choice:
        is_penalised = tree.sampling.repetition_penalty != 1 or tree.sampling.shaping is not None
        tokens = tree.tokens_to(name) if is_penalised else _tail(tree, name)
        logits, demotion = self.logits_after(tokens), self.demotion(tokens)
        [allowed] = allowed_after(tree, (name,))
        if allowed is not None:
            bits = np.unpackbits(allowed, count=len(logits), bitorder="little")
            logits = tuple(score if bit else -math.inf for score, bit in zip(logits, bits, strict=True))
        if tree.sampling.is_greedy and not is_penalised:
            return _greedy_choice(logits, demotion, candidates)
        position = tree.nodes[name].index + 1 - tree.prompt_tokens
        scores = keyed_scores(logits, tree.sampling, seen=tokens, position=position)
        return best_choice(demoted(scores, demotion), candidates=candidates)

    def _nll(self, tree: SequenceTree, row: Row) -> float | None:
        losses = []
        for name, token in zip(row.nodes, row.tokens[1:], strict=False):
            tail = _tail(tree, name)
            losses.append(-_log_softmax(demoted(self.logits_after(tail), self.demotion(tail)))[token])
        return math.fsum(losses) / len(losses) if losses else None


def _tail(tree: SequenceTree, name: int) -> list[int]:
    """Return the last `ORDER` tokens of prefix and path down to a node, which is faster than the whole text."""
    tail: list[int] = []
    while name in tree.nodes and len(tail) < ORDER:
        node = tree.nodes[name]
        tail.append(node.token)
        name = node.parent
    missing = min(ORDER - len(tail), len(tree.tokens))
    return [*tree.tokens[len(tree.tokens) - missing :], *reversed(tail)]


def keyed_scores(logits: Sequence[float], sampling: Sampling, *, seen: Sequence[int], position: int) -> list[float]:
    """Return the scores that the choice at an output position maximises; `seen` tokens are penalised."""
    scores = list(logits)
    shaping = sampling.shaping or Shaping()
    written = list(seen[max(0, len(seen) - position) :])
    for one in shaping.logit_bias:
        scores[one.token] += one.bias
    banned = [word[-1] for word in shaping.bad_words if word and [*written, word[-1]][-len(word) :] == list(word)]
    for token in (*banned, *(shaping.held_back if position < shaping.min_tokens else ())):
        scores[token] = -math.inf
    if sampling.repetition_penalty != 1:
        for token in set(seen):
            penalty = sampling.repetition_penalty
            scores[token] = scores[token] * penalty if scores[token] < 0 else scores[token] / penalty
    for token in set(written):
        scores[token] -= shaping.frequency_penalty * written.count(token)
        scores[token] -= shaping.presence_penalty
    if not sampling.is_greedy:
        scores = [
            score + gumbel(seed=sampling.seed, position=position, token=token) if score > -math.inf else score
            for token, score in enumerate(_log_softmax(_filtered(scores, sampling)))
        ]
    return scores


def demoted(scores: Sequence[float], ranks: int) -> list[float]:
    """Return the same scores with the best token moved up to `ranks` ranks down."""
    changed = list(scores)
    if not ranks:
        return changed
    top = [token for token in _best(scores, ranks + 1) if scores[token] > -math.inf]
    for token, score in zip([*top[1:], top[0]], [scores[token] for token in top], strict=True):
        changed[token] = score
    return changed


def _best(scores: Sequence[float], count: int) -> list[int]:
    """Return tokens by score, lowest id first among equals, as in a stable sort."""
    return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:count]


def best_choice(scores: Sequence[float], *, candidates: int = 0) -> Choice:
    """Return the best-scored token, lowest id first among equals, with its margin and candidates."""
    ranked = _best(scores, max(2, candidates))
    logs = _log_softmax(scores) if candidates else scores
    margin = scores[ranked[0]] - scores[ranked[1]] if len(ranked) > 1 else math.inf
    shown = tuple((token, math.exp(logs[token])) for token in ranked[:candidates] if logs[token] > -math.inf)
    return Choice(ranked[0], margin, shown)


@lru_cache(maxsize=KEPT)
def _greedy_choice(logits: Logits, demotion: int, candidates: int) -> Choice:
    """Return the best choice by the logits, which paths with equal ends share."""
    return best_choice(demoted(logits, demotion), candidates=candidates)


def _filtered(scores: Sequence[float], sampling: Sampling) -> list[float]:
    top = max(scores)
    tempered = [(score - top) / sampling.temperature for score in scores]
    if sampling.top_k:
        lowest = nlargest(sampling.top_k, tempered)[-1]
        tempered = [score if score >= lowest else -math.inf for score in tempered]
    if sampling.top_p < 1:
        tempered = _keep_top_p(tempered, sampling.top_p)
    if sampling.min_p > 0:
        bar = math.log(sampling.min_p)
        tempered = [score if score >= bar else -math.inf for score in tempered]
    return tempered


def _keep_top_p(scores: Sequence[float], top_p: float) -> list[float]:
    kept = list(scores)
    logs = _log_softmax(scores)
    tail = 0.0
    for token in sorted(range(len(scores)), key=lambda token: (scores[token], token))[:-1]:
        tail += math.exp(logs[token])
        if tail > 1 - top_p:
            break
        kept[token] = -math.inf
    return kept


def _log_softmax(scores: Sequence[float]) -> list[float]:
    top = max(scores)
    total = top + math.log(math.fsum(math.exp(score - top) for score in scores))
    return [score - total for score in scores]
