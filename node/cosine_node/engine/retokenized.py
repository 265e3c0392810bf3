"""A drafter whose model has another tokenizer than the target: its text is written anew in the target's tokens.

Such drafts are matched, not coupled: the model continues greedily and shares no noise with the target.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from cosine_node.engine.base import Choice, Engine, Row, RowResult
from cosine_node.engine.own_text import OwnText
from cosine_node.engine.target_text import TargetText
from cosine_node.engine.text_alignment import TextTokens, own_per_target
from cosine_node.engine.text_drafting import MAX_PASSES, DraftingResult, TextDrafting, UnplannedNode
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling

SETTLE_TOKENS: Final = 64
"""Inner nodes from which on those of certain text are kept and others dropped."""


@dataclass(slots=True)
class _TextPair:
    """A sequence of target tokens and, once it is needed, the inner one of the same text."""

    sampling: Sampling
    text: TargetText = field(default_factory=TargetText)
    own: OwnText | None = None
    settled_tokens: int = 0
    """Target tokens of the prefix when inner tokens were kept last."""
    is_contradicted: bool = False
    """Whether text was met whose own tokens do not begin with those kept."""


class RetokenizedEngine:
    """Implements `cosine_node.engine.base.Engine` in target tokens around an engine with other tokens of its own.

    The token after a node is that of the text the inner model says next, once more text cannot change it or
    `MAX_PASSES` are spent. Its confidence is the product of the inner model's probabilities. What was said beyond
    it serves the nodes that follow it, at no further pass. There is no candidate after half a character, unless
    it was planned before, nor where the text does not fit the inner context or pool.

    `lead` are own tokens that every text begins with, `ends` own tokens after which no text follows. Tokens of
    pool and context are counted as `own_per_target` own ones. Sequences share no prefixes, whatever their scope.
    """

    def __init__(
        self,
        inner: Engine,
        *,
        own: TextTokens,
        target: TextTokens,
        vocab_tokens: int,
        lead: Sequence[int] = (),
        ends: frozenset[int] = frozenset(),
    ) -> None:
        self._inner = inner
        self._drafting = TextDrafting(inner, own=own, target=target, lead=lead, ends=ends)
        self._vocab_tokens = vocab_tokens
        self._lead_tokens = len(lead)
        self._followed: dict[int, _TextPair] = {}
        self._opened = 0
        self.own_per_target = own_per_target(own, target, vocab_tokens=vocab_tokens)

    @property
    def vocab_tokens(self) -> int:
        return self._vocab_tokens

    @property
    def context_tokens(self) -> int:
        room = self._inner.context_tokens - self._lead_tokens - MAX_PASSES
        return max(1, int(room / self.own_per_target))

    @property
    def numerics(self) -> str:
        return f"{self._inner.numerics} retokenized"

    @property
    def free_tokens(self) -> int:
        return int(self._inner.free_tokens / self.own_per_target)

    @property
    def cached_tokens(self) -> int:
        return int(self._inner.cached_tokens / self.own_per_target)

    @property
    def live_tokens(self) -> int:
        """Own tokens that the inner engine holds; 0 once everything is released."""
        owns = [followed.own for followed in self._followed.values() if followed.own is not None]
        return sum(len(own.tokens) + own.node_tokens for own in owns)

    @property
    def open_sequences(self) -> int:
        return len(self._followed)

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        # A pass may be under way in another thread, which may open inner sequences: this one's must wait.
        number = self._opened
        self._opened += 1
        self._followed[number] = _TextPair(sampling)
        return number

    def reuse_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        """Always 0."""
        if self._of(sequence).text.live_tokens:
            raise LocalProtocolError(f"Sequence {sequence} is not empty.")
        return 0

    def reserve(self, sequence: int, tokens: int) -> None:
        """Make room for such a text in the inner pool, and for what is said after it. Raises `OutOfPages`."""
        own = self._own_of(self._of(sequence))
        self._inner.reserve(own.sequence, math.ceil(tokens * self.own_per_target) + MAX_PASSES)

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """One pass, of up to `MAX_PASSES` inner ones. Raises `LocalProtocolError`; nothing is fed then.

        `nll` is that of a new sequence's text under the inner model, in nats a target token.
        """
        followed = [self._of(row.sequence) for row in rows]
        if len({row.sequence for row in rows}) < len(rows):
            raise LocalProtocolError("A pass takes at most one row for a sequence.")
        for one, row in zip(followed, rows, strict=True):
            one.text.check(row, vocab_tokens=self.vocab_tokens, context_tokens=self.context_tokens)
        with self._undone_on_error(rows):
            drafts = [d for one, row in zip(followed, rows, strict=True) for d in self._begin(one, row)]
            outcomes = self._drafting.plan_all(drafts)
        return [_result(one, row, outcomes) for one, row in zip(followed, rows, strict=True)]

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        self._of(sequence).text.keep(path)

    def prune(self, sequence: int, nodes: Sequence[int]) -> None:
        self._of(sequence).text.prune(nodes)

    def abandon(self) -> None:
        self._inner.abandon()

    def release(self, sequence: int) -> None:
        own = self._of(sequence).own
        del self._followed[sequence]
        if own is not None:
            self._inner.release(own.sequence)

    def _of(self, sequence: int) -> _TextPair:
        followed = self._followed.get(sequence)
        if followed is None:
            raise LocalProtocolError(f"Sequence {sequence} is not open.")
        return followed

    def _own_of(self, followed: _TextPair) -> OwnText:
        if followed.own is None:
            # What is matched is the target's likeliest text, which a penalty changes and a temperature does not.
            sampling = Sampling(repetition_penalty=followed.sampling.repetition_penalty)
            followed.own = OwnText(self._inner.open(sampling=sampling, prompt_tokens=0))
        return followed.own

    @contextmanager
    def _undone_on_error(self, rows: Sequence[Row]) -> Iterator[None]:
        # An inner pass may be abandoned or die in the device; the sequences then stand as before it.
        is_done = False
        try:
            yield
            is_done = True
        finally:
            for row in [] if is_done else rows:
                followed = self._followed[row.sequence]
                followed.text.prune(row.nodes)
                if followed.own is not None:
                    followed.own.withdraw()

    def _begin(self, followed: _TextPair, row: Row) -> Iterator[UnplannedNode]:
        """Feed a row, and say which of its nodes nothing is planned after."""
        self._settle(followed)
        own, text = self._own_of(followed), followed.text
        wants_nll = row.wants_nll and own.is_empty and not text.live_tokens
        text.add(row)
        scored = row.nodes[row.scored_from :]
        for name in scored or row.nodes[-1:] if wants_nll else scored:
            if text.plan(name) is not None:
                continue
            tokens = text.tokens_to(name)
            own_ids = self._drafting.own_ids(tokens)
            followed.is_contradicted |= bool(own_ids) and not own.leads_to(own_ids)
            if own_ids and own.leads_to(own_ids):
                yield UnplannedNode(text, own, name, tokens, own_ids, wants_nll)
            else:
                text.set_plan(name, ())

    def _settle(self, followed: _TextPair) -> None:
        """Now and then, let the inner engine keep what is certain, and begin anew if it kept the wrong tokens."""
        own, text = self._own_of(followed), followed.text
        is_due = own.node_tokens >= SETTLE_TOKENS and len(text.tokens) > followed.settled_tokens
        if not is_due and not followed.is_contradicted:
            return
        ids = self._drafting.certain_ids(text.tokens)
        if followed.is_contradicted or not own.leads_to(ids):
            self._inner.release(own.sequence)
            followed.own = None
        else:
            self._inner.keep(own.sequence, own.settle(ids))
        followed.settled_tokens, followed.is_contradicted = len(text.tokens), False


def _result(followed: _TextPair, row: Row, outcomes: dict[int, DraftingResult]) -> RowResult:
    own = followed.own
    outcome = outcomes.get(own.sequence, DraftingResult()) if own is not None else DraftingResult()
    if outcome.error is not None:
        followed.text.prune(row.nodes)
        return RowResult(choices=(), error=outcome.error)
    choices = tuple(_choice(followed.text, name, row.candidates) for name in row.nodes[row.scored_from :])
    if outcome.nats is None or len(row.tokens) == 1:
        return RowResult(choices)
    return RowResult(choices, nll=outcome.nats / (len(row.tokens) - 1))


def _choice(text: TargetText, name: int, candidates: int) -> Choice:
    """The planned token, its margin being its confidence; token 0 with no margin where there is none."""
    plan = text.plan(name)
    if not plan:
        return Choice(0, 0.0)
    token, confidence = plan[0]
    return Choice(token, confidence, plan[: min(candidates, 1)])
