"""A drafter whose model has another tokenizer than the target: its text is written anew in the target's tokens.

Such drafts are matched, not coupled: the model continues greedily and shares no noise with the target.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
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
"""A choice: inner nodes from which on those of certain text are kept and others dropped."""


@dataclass(slots=True)
class _TextPair:
    """A sequence of target tokens and, once it is needed, the inner one of the same text."""

    sampling: Sampling
    text: TargetText = field(default_factory=TargetText)
    own: OwnText | None = None
    settled_tokens: int = 0
    """Target tokens of the prefix when inner tokens were kept last."""
    is_contradicted: bool = False
    """True if text was met whose own tokens do not begin with those kept."""


class RetokenizedEngine:
    """Implements `cosine_node.engine.base.Engine` in target tokens around an engine with other tokens of its own.

    The token after a node is that of the text the inner model goes on with, once more text cannot change it or
    `MAX_PASSES` are spent. Its confidence is the product of the inner model's probabilities. What was predicted
    beyond it serves the nodes that follow it, at no further pass. There is no candidate after half a character,
    unless it was planned before, nor where the text does not fit the inner context or pool.

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
        self._pairs: dict[int, _TextPair] = {}
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
        owns = [pair.own for pair in self._pairs.values() if pair.own is not None]
        return sum(len(own.tokens) + own.node_tokens for own in owns)

    @property
    def open_sequences(self) -> int:
        return len(self._pairs)

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        # A pass may be under way in another thread, which may open inner sequences: this one's must wait.
        number = self._opened
        self._opened += 1
        self._pairs[number] = _TextPair(sampling)
        return number

    def reuse_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        """Always 0."""
        if self._of(sequence).text.live_tokens:
            raise LocalProtocolError(f"Sequence {sequence} is not empty.")
        return 0

    def reserve(self, sequence: int, tokens: int) -> None:
        """Make room for such a text in the inner pool, and for what is predicted after it. Raises `OutOfPages`."""
        own = self._own_of(self._of(sequence))
        self._inner.reserve(own.sequence, math.ceil(tokens * self.own_per_target) + MAX_PASSES)

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """One pass, of up to `MAX_PASSES` inner ones. Raises `LocalProtocolError`; nothing is fed then.

        `nll` is that of a new sequence's text under the inner model, in nats a target token.
        """
        pairs = [self._of(row.sequence) for row in rows]
        if len({row.sequence for row in rows}) < len(rows):
            raise LocalProtocolError("A pass takes at most one row for a sequence.")
        for pair, row in zip(pairs, rows, strict=True):
            pair.text.check(row, vocab_tokens=self.vocab_tokens, context_tokens=self.context_tokens)
        with ExitStack() as on_error:
            # An inner pass may be abandoned or die in the device; the sequences then stand as before it.
            on_error.callback(self._unfeed, rows)
            unplanned = [node for pair, row in zip(pairs, rows, strict=True) for node in self._begin(pair, row)]
            drafted = self._drafting.plan_all(unplanned)
            on_error.pop_all()
        return [_result(pair, row, drafted) for pair, row in zip(pairs, rows, strict=True)]

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        self._of(sequence).text.keep(path)

    def prune(self, sequence: int, nodes: Sequence[int]) -> None:
        self._of(sequence).text.prune(nodes)

    def abandon(self) -> None:
        self._inner.abandon()

    def release(self, sequence: int) -> None:
        own = self._of(sequence).own
        del self._pairs[sequence]
        if own is not None:
            self._inner.release(own.sequence)

    def _of(self, sequence: int) -> _TextPair:
        pair = self._pairs.get(sequence)
        if pair is None:
            raise LocalProtocolError(f"Sequence {sequence} is not open.")
        return pair

    def _own_of(self, pair: _TextPair) -> OwnText:
        if pair.own is None:
            # What is matched is the target's likeliest text, which a penalty changes and a temperature does not.
            sampling = Sampling(repetition_penalty=pair.sampling.repetition_penalty)
            pair.own = OwnText(self._inner.open(sampling=sampling, prompt_tokens=0))
        return pair.own

    def _unfeed(self, rows: Sequence[Row]) -> None:
        for row in rows:
            pair = self._of(row.sequence)
            pair.text.prune(row.nodes)
            if pair.own is not None:
                pair.own.withdraw()

    def _begin(self, pair: _TextPair, row: Row) -> Iterator[UnplannedNode]:
        """Feed a row; those of its nodes that nothing is planned after."""
        self._settle(pair)
        own, text = self._own_of(pair), pair.text
        wants_nll = row.wants_nll and own.is_empty and not text.live_tokens
        text.add(row)
        scored = row.nodes[row.scored_from :]
        for name in scored or row.nodes[-1:] if wants_nll else scored:
            if text.plan(name) is not None:
                continue
            tokens = text.tokens_to(name)
            own_ids = self._drafting.own_ids(tokens)
            if own.leads_to(own_ids):
                yield UnplannedNode(text, own, name, tokens, own_ids, wants_nll)
            else:
                pair.is_contradicted |= bool(own_ids)
                text.set_plan(name, ())

    def _settle(self, pair: _TextPair) -> None:
        """Now and then, let the inner engine keep what is certain, and begin anew if it kept the wrong tokens."""
        own, text = self._own_of(pair), pair.text
        is_due = own.node_tokens >= SETTLE_TOKENS and len(text.tokens) > pair.settled_tokens
        if not is_due and not pair.is_contradicted:
            return
        ids = self._drafting.certain_ids(text.tokens)
        if pair.is_contradicted or not own.leads_to(ids):
            self._inner.release(own.sequence)
            pair.own = None
        else:
            self._inner.keep(own.sequence, own.settle(ids))
        pair.settled_tokens, pair.is_contradicted = len(text.tokens), False


def _result(pair: _TextPair, row: Row, drafted: dict[int, DraftingResult]) -> RowResult:
    """A row's planned tokens, whose margin is their confidence; token 0 with no margin where none is planned."""
    drafting = drafted.get(pair.own.sequence, DraftingResult()) if pair.own is not None else DraftingResult()
    if drafting.error is not None:
        pair.text.prune(row.nodes)
        return RowResult(choices=(), error=drafting.error)
    choices = []
    for name in row.nodes[row.scored_from :]:
        plan = pair.text.plan(name)
        if plan:
            token, confidence = plan[0]
            choices.append(Choice(token, confidence, plan[: min(row.candidates, 1)]))
        else:
            choices.append(Choice(0, 0.0))
    if drafting.nats is None or len(row.tokens) == 1:
        return RowResult(tuple(choices))
    return RowResult(tuple(choices), nll=drafting.nats / (len(row.tokens) - 1))
