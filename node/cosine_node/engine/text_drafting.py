"""What an inner model says after texts of another tokenizer: passes over all until each has a next token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cosine_node.engine.base import Engine, OutOfPages, Row, RowResult
from cosine_node.engine.own_text import OwnText
from cosine_node.engine.target_text import TargetText
from cosine_node.engine.text_alignment import After, TextTokens, is_last, planned, whole_text
from cosine_p2p.text import REPLACEMENT
from cosine_protocol.errors import CosineError

MAX_PASSES: Final = 16
"""Passes of the inner model for one pass of the outer; they end once there is a token after every node."""


@dataclass(frozen=True, slots=True)
class UnplannedNode:
    """A node that a token is wanted after, and the text down to it in target tokens and in own ones."""

    text: TargetText
    own: OwnText
    node: int
    tokens: Sequence[int]
    own_ids: Sequence[int]
    wants_nll: bool


@dataclass(slots=True)
class DraftingResult:
    """What the passes gave for a sequence besides tokens: its text's negative log-likelihood, in nats."""

    nats: float | None = None
    error: CosineError | None = None


class TextDrafting:
    """The inner engine and the two tokenizers. `lead` and `ends` are those of `RetokenizedEngine`."""

    def __init__(
        self, inner: Engine, *, own: TextTokens, target: TextTokens, lead: Sequence[int], ends: frozenset[int]
    ) -> None:
        self._inner = inner
        self._own = own
        self._target = target
        self._lead = tuple(lead)
        self._ends = ends

    def own_ids(self, tokens: Sequence[int]) -> Sequence[int]:
        """A text in own tokens; empty where the inner model cannot go on from it."""
        if self._target.decode(tokens).endswith(REPLACEMENT):
            return ()
        ids = self.certain_ids(tokens)
        is_readable = max(ids, default=0) < self._inner.vocab_tokens
        return ids if is_readable and len(ids) <= self._inner.context_tokens else ()

    def certain_ids(self, tokens: Sequence[int]) -> Sequence[int]:
        """A text in own tokens, without the half of a character at its end."""
        return [*self._lead, *self._own.encode(whole_text(self._target.decode(tokens)))]

    def plan_all(self, drafts: Sequence[UnplannedNode]) -> dict[int, DraftingResult]:
        """Plan what follows every draft's node; what else came of it, by inner sequence."""
        outcomes = {draft.own.sequence: DraftingResult() for draft in drafts}
        waiting = list(drafts)
        for _ in range(MAX_PASSES):
            waiting = [draft for draft in waiting if not self._is_planned(draft)]
            if not waiting or not self._pass(waiting, outcomes):
                break
            waiting = [draft for draft in waiting if outcomes[draft.own.sequence].error is None]
        for draft in waiting:
            self._plan(draft, After.UNKNOWN)
        return outcomes

    def _is_planned(self, draft: UnplannedNode) -> bool:
        """Plan what follows a node if that is known, else ask for one own token more."""
        if self._plan(draft, After.MORE):
            return True
        own_tokens = len(draft.own_ids) + len(draft.own.continuation(draft.own_ids))
        if own_tokens <= self._inner.context_tokens and draft.own.ask(draft.own_ids):
            return False
        self._plan(draft, After.UNKNOWN)
        return True

    def _plan(self, draft: UnplannedNode, after: After) -> bool:
        """Whether there is something to plan now, or never will be."""
        said = draft.own.continuation(draft.own_ids)
        is_over = is_last(self._own, own_before=draft.own_ids, said=said, ends=self._ends)
        plan = planned(
            self._target,
            self._own,
            before=draft.tokens,
            own_before=draft.own_ids,
            said=said,
            after=After.NOTHING if is_over else after,
        )
        if plan or is_over or after is After.UNKNOWN:
            draft.text.set_plan(draft.node, plan)
        return bool(plan) or is_over

    def _pass(self, drafts: Sequence[UnplannedNode], outcomes: dict[int, DraftingResult]) -> bool:
        """Feed what the drafts asked for; False, and nothing fed, if the inner pool is spent."""
        owns = {draft.own.sequence: draft.own for draft in drafts}
        for sequence, own in owns.items():
            self._inner.prune(sequence, own.take_dropped())
        wanting = {draft.own.sequence for draft in drafts if draft.wants_nll and draft.own.is_empty}
        asked = [own.row(wants_nll=sequence in wanting) for sequence, own in owns.items()]
        rows = [row for row in asked if row is not None]
        try:
            results = self._inner.forward(rows)
        except OutOfPages:
            for own in owns.values():
                own.withdraw()
            return False
        for row, result in zip(rows, results, strict=True):
            self._absorb(owns[row.sequence], row, result, outcomes[row.sequence])
        return True

    def _absorb(self, own: OwnText, row: Row, result: RowResult, outcome: DraftingResult) -> None:
        if result.error is not None:
            own.withdraw()
            self._inner.prune(row.sequence, row.nodes)
            outcome.error = result.error
            return
        own.absorb(row, result.choices)
        if result.nll is not None:
            outcome.nats = result.nll * (len(row.tokens) - 1)
