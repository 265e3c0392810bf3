"""The base of engines that choose tokens by the logits of a model."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from cosine_engine.base import Choice, Row, RowResult
from cosine_engine.constraints.grammars import Grammars
from cosine_engine.kv_pool import PagePool
from cosine_engine.paged import PagedEngine
from cosine_engine.sampling import Query, failure_of, reported_tokens, row_queries
from cosine_engine.tree import Feeds
from cosine_engine.vocabulary import ALL_TOKENS, DraftVocabulary, KnownTokens
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling
from cosine_protocol.verify import Likelihood

Logits = Any
"""Logits [rows, vocab] as an array of the sampler's library."""


class Sampler(Protocol):
    """The keyed sampler for one library of arrays: the module `torch.sampling` or `lanes.sampling`."""

    def choose(
        self,
        logits: Logits,
        queries: Sequence[Query],
        vocabulary: DraftVocabulary | None = None,
        *,
        known_tokens: int | None = None,
    ) -> list[Choice | None]:
        """Return one choice for each row of `logits`; None for a row with NaN or infinity.

        Infinity is +inf, or a row with only -inf: a model may rule out single tokens by -inf. With a `vocabulary`,
        ids are a drafter's own and have the noise of the target's; reserved ids are never chosen, but their
        probability lessens that of the candidates. Ids from `known_tokens` on are not part of the distribution.
        """

    def likelihoods_after(
        self, logits: Logits, tokens: Sequence[int], *, top: int, known_tokens: int | None = None
    ) -> list[Likelihood]:
        """Return the likelihood of each token by its row of `logits`, with the `top` likeliest tokens.

        Ids from `known_tokens` on are not part of the distribution.
        """

    def mean_nll(self, logits: Logits, tokens: Sequence[int]) -> float:
        """Return the mean negative log-likelihood of each token by its row of `logits`."""


class LogitsEngine(PagedEngine, ABC):
    """`cosine_engine.base.Engine` without the model, whose passes are `pass_logits`.

    With a vocabulary of a drafter, trees and logits are in the drafter's own ids, rows and results in the target's.
    """

    tells_likelihoods = True

    def __init__(
        self,
        pool: PagePool,
        sampler: Sampler,
        *,
        vocab_tokens: int,
        context_tokens: int,
        numerics: str,
        known: KnownTokens = ALL_TOKENS,
        grammars: Grammars | None = None,
    ) -> None:
        """`vocab_tokens` and `context_tokens` are the model's; no sequence is longer than the pool."""
        super().__init__(
            pool,
            vocab_tokens=vocab_tokens if known.vocabulary is None else known.target_tokens,
            context_tokens=min(context_tokens, pool.capacity_tokens),
            numerics=numerics,
            grammars=grammars,
        )
        self._sampler = sampler
        self._known = known

    @abstractmethod
    def pass_logits(self, feeds: Feeds, wanted: list[int]) -> Logits:
        """Run a pass over rows in their trees; return the logits [wanted, vocab] at these positions of the pass."""

    @property
    def nll_of(self) -> Callable[[Row], float] | None:
        """The mean negative log-likelihood of a row in the last pass. Default: it is computed from the logits."""
        return None

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        vocabulary = self._known.vocabulary
        own = sampling if vocabulary is None else vocabulary.own_sampling(sampling)
        return super().open(sampling=own, prompt_tokens=prompt_tokens, scope=scope)

    def reuse_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        vocabulary = self._known.vocabulary
        return super().reuse_prefix(sequence, tokens if vocabulary is None else vocabulary.own_tokens(tokens))

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """Run one pass.

        Raises `LocalProtocolError`, `OutOfPages`, `OutOfMemory` or `PassAbandoned`, and then feeds nothing.
        """
        if not rows:
            return []
        vocabulary = self._known.vocabulary
        if vocabulary is not None:
            rows = [self._own_row(row, vocabulary) for row in rows]
        with self.feeding(rows) as feeds:
            results = row_results(
                feeds,
                lambda wanted: self.pass_logits(feeds, wanted),
                self._sampler,
                known=self._known,
                nll_of=self.nll_of,
            )
        self.unfeed([row for row, result in zip(rows, results, strict=True) if result.error is not None])
        return results

    def _own_row(self, row: Row, vocabulary: DraftVocabulary) -> Row:
        """Return a row in a drafter's own ids. Raises `LocalProtocolError` for a token that is not the target's."""
        if not all(0 <= token < self.vocab_tokens for token in row.tokens):
            raise LocalProtocolError(f"A token id is outside the vocabulary of {self.vocab_tokens}.")
        return replace(row, tokens=vocabulary.own_tokens(row.tokens))


def row_results(
    feeds: Feeds,
    logits_of: Callable[[list[int]], Logits],
    sampler: Sampler,
    *,
    known: KnownTokens = ALL_TOKENS,
    nll_of: Callable[[Row], float] | None = None,
) -> list[RowResult]:
    """Run a pass over rows in their trees and return their results, in the target's tokens.

    `logits_of` runs the pass and returns the logits [wanted, vocab] at these positions. `nll_of` is as in
    `LogitsEngine`.
    """
    wanted: list[int] = []
    # The places of the logits of scored nodes, and of all nodes of each row, among the wanted ones.
    scored: list[int] = []
    places: list[slice] = []
    position = 0
    for _, row in feeds:
        start = len(wanted)
        first = 0 if row.wants_nll and nll_of is None else min(row.scored_from, row.reported_from)
        wanted += range(position + first, position + len(row.tokens))
        position += len(row.tokens)
        places.append(slice(start, len(wanted)))
        scored += range(len(wanted) - len(row.tokens) + row.scored_from, len(wanted))
    logits = logits_of(wanted)
    chosen = iter(
        sampler.choose(
            logits if len(scored) == len(wanted) else logits[scored],
            [query for tree, row in feeds for query in row_queries(tree, row)],
            known.vocabulary,
            known_tokens=known.count,
        )
    )
    results = []
    for (tree, row), place in zip(feeds, places, strict=True):
        found = [next(chosen) for _ in row.nodes[row.scored_from :]]
        choices = tuple(choice for choice in found if choice is not None)
        nll = None
        if row.wants_nll and len(row.tokens) > 1:
            nll = sampler.mean_nll(logits[place][:-1], row.tokens[1:]) if nll_of is None else nll_of(row)
            nll += _unknown_nll(row, known)
        # Only NaN differs from itself.
        if len(choices) < len(found) or nll != nll:
            results.append(RowResult(choices=(), error=failure_of(tree, row)))
            continue
        told: list[Likelihood] = []
        if row.followers:
            told = sampler.likelihoods_after(
                logits[place][-len(row.followers) :],
                reported_tokens(row, choices),
                top=row.top,
                known_tokens=known.count,
            )
        if known.vocabulary is not None:
            choices = tuple(map(known.vocabulary.target_choice, choices))
        results.append(RowResult(choices=choices, nll=nll, likelihoods=tuple(told)))
    return results


def _unknown_nll(row: Row, known: KnownTokens) -> float:
    """Return the mean loss of tokens that a drafter lacks: they share the probability of the reserved id."""
    if known.vocabulary is None:
        return 0.0
    scored = row.tokens[1:]
    unknown = max(1, known.target_tokens - known.vocabulary.reserved_id)
    return scored.count(known.vocabulary.reserved_id) * math.log(unknown) / len(scored)
