"""Drafting for a target of another tokenizer: passes of the inner model until each text has a next target token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cosine_node.engine.base import Engine, OutOfPages
from cosine_node.engine.own_text import OwnText
from cosine_node.engine.target_text import TargetText
from cosine_node.engine.text_alignment import After, TextTokens, decode_whole, is_last, plan_tokens
from cosine_p2p.token_effects import REPLACEMENT
from cosine_protocol.errors import CosineError

MAX_PASSES: Final = 16
"""Bounds the time of a pass of the outer engine, in inner ones; they end once there is a token after every node."""


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
    """The result for a sequence besides its plans: its text's negative log-likelihood, in nats."""

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
        return [*self._lead, *self._own.encode(decode_whole(self._target, tokens))]

    def plan_all(self, nodes: Sequence[UnplannedNode]) -> dict[int, DraftingResult]:
        """Plan what follows every node; what else came of it, by inner sequence."""
        results = {node.own.sequence: DraftingResult() for node in nodes}
        waiting = list(nodes)
        for _ in range(MAX_PASSES):
            waiting = [node for node in waiting if not self._is_planned(node)]
            if not waiting or not self._pass(waiting, results):
                break
            waiting = [node for node in waiting if results[node.own.sequence].error is None]
        for node in waiting:
            self._plan(node, After.UNKNOWN)
        return results

    def _is_planned(self, node: UnplannedNode) -> bool:
        """Plan what follows a node if that is known, else ask for one own token more."""
        if self._plan(node, After.MORE):
            return True
        own_tokens = len(node.own_ids) + len(node.own.continuation(node.own_ids))
        if own_tokens <= self._inner.context_tokens and node.own.ask(node.own_ids):
            return False
        self._plan(node, After.UNKNOWN)
        return True

    def _plan(self, node: UnplannedNode, after: After) -> bool:
        """Plan what follows a node; False if there is nothing to plan yet."""
        predicted = node.own.continuation(node.own_ids)
        is_over = is_last(self._own, own_before=node.own_ids, predicted=predicted, ends=self._ends)
        plan = plan_tokens(
            self._target,
            self._own,
            before=node.tokens,
            own_before=node.own_ids,
            predicted=predicted,
            after=After.NOTHING if is_over else after,
        )
        if plan or is_over or after is After.UNKNOWN:
            node.text.set_plan(node.node, plan)
        return bool(plan) or is_over

    def _pass(self, nodes: Sequence[UnplannedNode], results: dict[int, DraftingResult]) -> bool:
        """Feed what was asked for the nodes; False, and nothing fed, if the inner pool is spent."""
        owns = {node.own.sequence: node.own for node in nodes}
        for sequence, own in owns.items():
            self._inner.prune(sequence, own.take_dropped())
        wanting = {node.own.sequence for node in nodes if node.wants_nll and node.own.is_empty}
        asked = [own.row(wants_nll=sequence in wanting) for sequence, own in owns.items()]
        rows = [row for row in asked if row is not None]
        try:
            fed = self._inner.forward(rows)
        except OutOfPages:
            for own in owns.values():
                own.withdraw()
            return False
        for row, result in zip(rows, fed, strict=True):
            own = owns[row.sequence]
            if result.error is not None:
                own.withdraw()
                self._inner.prune(row.sequence, row.nodes)
                results[row.sequence].error = result.error
                continue
            own.absorb(row, result.choices)
            if result.nll is not None:
                results[row.sequence].nats = result.nll * (len(row.tokens) - 1)
        return True
