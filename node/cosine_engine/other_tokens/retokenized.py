"""A drafter whose model has another tokenizer than the target: its text is converted to the target's tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cosine_engine.base import PREFIX, Choice, Engine, OutOfPages, Row, RowResult
from cosine_engine.other_tokens.text_alignment import (
    After,
    PredictedToken,
    TextTokens,
    decode_whole,
    is_last,
    own_per_target,
    plan_tokens,
)
from cosine_engine.other_tokens.written import Continuation, WrittenEngine
from cosine_engine.tree import SequenceTree
from cosine_p2p.text.token_effects import REPLACEMENT
from cosine_protocol.errors import CosineError
from cosine_protocol.request import Sampling

MAX_CONTINUATION_TOKENS: Final = 64
"""Bounds the work on one plan, which is tried before each inner pass."""
NOTHING: Final = PredictedToken(-1, 0.0)
"""Where the inner model was asked and has no token."""
HELD_TOKENS: Final = 8
"""Tokens at the end of a text that are not kept yet, since following text may change them."""
MAX_PASSES: Final = 16
"""Bounds the inner passes of an outer one, which end once a token follows every text."""
SETTLE_TOKENS: Final = 64
"""Number of inner nodes from which those of certain text are kept."""


@dataclass(slots=True)
class OwnText:
    """A text in the inner model's tokens: those `fed`, with the `best` token after each if it was asked for.

    The first `kept` ones are the prefix of the inner sequence, the others a chain of nodes, named by their places.
    """

    sequence: int
    fed: list[int] = field(default_factory=list)
    best: list[PredictedToken | None] = field(default_factory=list)
    kept: int = 0

    def shared(self, ids: Sequence[int]) -> int:
        """Return the number of a text's first tokens that were fed."""
        pairs = enumerate(zip(self.fed, ids, strict=False))
        return next((place for place, (one, other) in pairs if one != other), min(len(self.fed), len(ids)))

    def predicted(self, ids: Sequence[int]) -> list[PredictedToken]:
        """Return the known predicted tokens after a text."""
        found: list[PredictedToken] = []
        for place in range(len(ids) - 1, len(self.fed)) if self.shared(ids) == len(ids) else ():
            best = self.best[place]
            if best is None or best is NOTHING:
                break
            found.append(best)
            if self.fed[place + 1 : place + 2] != [best.token]:
                break
        return found

    def absorb(self, tokens: Sequence[int], choice: Choice) -> None:
        """Note tokens that were fed, and the choice after the last."""
        self.fed += tokens
        self.best += [None] * (len(tokens) - 1)
        self.best.append(PredictedToken(*choice.candidates[0]) if choice.candidates else NOTHING)


@dataclass(slots=True)
class _AskedEngine:
    """A text that a pass continues, in own tokens, and the outcome: the text's negative log-likelihood in nats."""

    known: Continuation
    own: OwnText
    ids: Sequence[int]
    wants_nll: bool
    nats: float | None = None
    error: CosineError | None = None


class RetokenizedEngine(WrittenEngine[Continuation]):
    """Implements `cosine_engine.base.Engine` in target tokens around an engine with another tokenizer.

    The token after a text is that of the inner model's continuation, once more text cannot change it or
    `MAX_PASSES` are used up. Its confidence is the product of the inner model's probabilities. Further predictions
    serve the following nodes without another pass. There is no candidate after half a character, unless it was
    planned before, nor where the text exceeds the inner context or pool.

    `lead` are own tokens at the beginning of every text, `ends` own tokens after which no text follows. Tokens of
    pool and context are counted as `own_per_target` own ones.
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
        ratio = own_per_target(own, target, vocab_tokens=vocab_tokens)
        super().__init__(
            pool_tokens=int(inner.free_tokens / ratio),
            vocab_tokens=vocab_tokens,
            context_tokens=max(1, int((inner.context_tokens - len(lead) - MAX_PASSES) / ratio)),
            numerics=f"{inner.numerics} retokenized",
        )
        self._inner = inner
        self._own, self._target = own, target
        self._lead, self._ends = tuple(lead), ends
        self._own_texts: dict[int, OwnText] = {}

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """Perform one pass, of up to `MAX_PASSES` inner ones.

        Raises `LocalProtocolError` or `OutOfPages` without feeding anything, and what the inner engine raises.
        `nll` is that of a new sequence's text under the inner model, in nats per target token.
        """
        with self.feeding(rows) as fed:
            asked = [self._asked(tree, row) if row.is_scored else None for tree, row in fed]
            self._write([one for one in asked if one is not None])
            results = [self._result(tree, row, one) for (tree, row), one in zip(fed, asked, strict=True)]
        self.unfeed([row for row, result in zip(rows, results, strict=True) if result.error is not None])
        return results

    def abandon(self) -> None:
        self._inner.abandon()

    def release(self, sequence: int) -> None:
        super().release(sequence)
        if (own := self._own_texts.pop(sequence, None)) is not None:
            self._inner.release(own.sequence)

    def _asked(self, tree: SequenceTree, row: Row) -> _AskedEngine | None:
        """Return the text of a row, unless its continuation is known or the inner model cannot continue it."""
        tokens = tree.tokens_to(row.nodes[-1])
        known = self._continuations.get(row.sequence)
        if known is None or not known.leads_to(tokens):
            if self._target.decode(tokens).endswith(REPLACEMENT):
                return None
            known = self._continuations[row.sequence] = Continuation(tokens)
        elif len(tokens) < len(known.tokens):
            return None
        ids = self._certain_ids(tokens)
        if not 0 < len(ids) <= self._inner.context_tokens or max(ids) >= self._inner.vocab_tokens:
            return None
        own = self._own_text(tree, row.sequence, ids)
        return _AskedEngine(known, own, ids, row.wants_nll and not own.fed and len(tokens) == len(row.tokens))

    def _certain_ids(self, tokens: Sequence[int]) -> list[int]:
        """Return a text in own tokens, without half a character at its end."""
        return [*self._lead, *self._own.encode(decode_whole(self._target, tokens))]

    def _own_text(self, tree: SequenceTree, sequence: int, ids: Sequence[int]) -> OwnText:
        """Return the own text of a sequence that is about to continue `ids`; a new one if it kept other tokens."""
        own = self._own_texts.get(sequence)
        if own is not None and len(own.fed) - own.kept >= SETTLE_TOKENS:
            settled = max(own.kept, own.shared(self._certain_ids(tree.tokens)[:-HELD_TOKENS]))
            self._inner.keep(own.sequence, range(own.kept, settled))
            own.kept = settled
        if own is not None and min(own.shared(ids), len(ids) - 1) < own.kept:
            self._inner.release(own.sequence)
            own = None
        if own is None:
            # Drafts match the target's likeliest text, which depends on a penalty but not on the temperature.
            sampling = Sampling(repetition_penalty=tree.sampling.repetition_penalty)
            own = self._own_texts[sequence] = OwnText(self._inner.open(sampling=sampling, prompt_tokens=0))
        return own

    def _write(self, asked: Sequence[_AskedEngine]) -> None:
        """Find the tokens after each text."""
        waiting = asked
        for _ in range(MAX_PASSES):
            waiting = [one for one in waiting if one.error is None and not self._plan(one, After.MORE)]
            rows = [(one, row) for one in waiting if (row := self._row(one)) is not None]
            if not rows or not self._pass(rows):
                break
        for one in waiting:
            if one.error is None:
                self._plan(one, After.UNKNOWN)

    def _plan(self, one: _AskedEngine, after: After) -> bool:
        """Add the tokens after a text; return False if there are none yet."""
        predicted = one.own.predicted(one.ids)
        is_over = is_last(self._own, own_before=one.ids, predicted=predicted, ends=self._ends)
        plan = plan_tokens(
            self._target,
            self._own,
            before=one.known.tokens,
            own_before=one.ids,
            predicted=predicted,
            after=After.NOTHING if is_over else after,
        )
        one.known.extend(plan)
        return bool(plan) or is_over

    def _row(self, one: _AskedEngine) -> Row | None:
        """Return the row that asks for one more own token; None without room, or if nothing can follow."""
        own, text = one.own, [*one.ids, *(each.token for each in one.own.predicted(one.ids))]
        most = min(self._inner.context_tokens, len(one.ids) + MAX_CONTINUATION_TOKENS)
        first = own.shared(text)
        if first == len(text):
            # It was fed as a part of another text, without a prediction.
            first -= 1
        if len(text) > most or own.best[first : first + 1] == [NOTHING]:
            return None
        self._inner.prune(own.sequence, range(first, len(own.fed)))
        del own.fed[first:], own.best[first:]
        nodes = tuple(range(first, len(text)))
        parents = (PREFIX if first == own.kept else first - 1, *nodes[:-1])
        wants_nll = one.wants_nll and not own.fed and len(nodes) > 1
        last = len(nodes) - 1
        return Row(own.sequence, tuple(text[first:]), nodes, parents, last, candidates=1, wants_nll=wants_nll)

    def _pass(self, rows: Sequence[tuple[_AskedEngine, Row]]) -> bool:
        """Feed rows; return False, with nothing fed, if the inner pool is full."""
        try:
            fed = self._inner.forward([row for _, row in rows])
        except OutOfPages:
            return False
        for (one, row), result in zip(rows, fed, strict=True):
            if result.error is not None:
                self._inner.prune(row.sequence, row.nodes)
                one.error = result.error
                continue
            one.own.absorb(row.tokens, result.choices[-1])
            if result.nll is not None:
                one.nats = result.nll * (len(row.tokens) - 1)
        return True

    def _result(self, tree: SequenceTree, row: Row, asked: _AskedEngine | None) -> RowResult:
        if asked is not None and asked.error is not None:
            return RowResult(choices=(), error=asked.error)
        nats = None if asked is None or len(row.tokens) == 1 else asked.nats
        return RowResult(self.choices(tree, row), nll=None if nats is None else nats / (len(row.tokens) - 1))
