"""A drafter whose model has another tokenizer than the target: its text is converted to the target's tokens.

Such drafts are matched, not coupled: the model continues greedily and shares no noise with the target.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final

from cosine_node.engine.base import PREFIX, Choice, Engine, OutOfPages, Row, RowResult
from cosine_node.engine.constraints.grammars import Grammars
from cosine_node.engine.text_alignment import (
    After,
    Plan,
    PredictedToken,
    TextTokens,
    decode_whole,
    is_last,
    own_per_target,
    plan_tokens,
)
from cosine_node.engine.tree import TokenNode, TokenTree
from cosine_p2p.text.token_effects import REPLACEMENT
from cosine_protocol.errors import CosineError, LocalProtocolError
from cosine_protocol.request import Sampling

MAX_CONTINUATION_TOKENS: Final = 64
"""Bounds the work on one plan, which is requested by each unplanned node in each inner pass."""
HELD_TOKENS: Final = 8
"""Tokens at the end of a text that are not kept yet, since following text may change them."""
MAX_PASSES: Final = 16
"""Bounds the inner passes of an outer one, which end once there is a token after every node."""
SETTLE_TOKENS: Final = 64
"""Number of inner nodes from which those of certain text are kept and others dropped."""


@dataclass(slots=True)
class PlannedNode(TokenNode):
    """A target token and the plan after it: None if not requested yet, empty if no token can follow."""

    plan: Plan | None


class TargetText(TokenTree[PlannedNode]):
    """The kept prefix and the live nodes, with the plan after each."""

    __slots__ = ("_prefix_plan",)

    def __init__(self) -> None:
        super().__init__()
        self._prefix_plan: Plan | None = None

    def add(self, row: Row) -> None:
        """Put the tokens of a checked row into the tree. A planned token continues with the plan."""
        for name, parent, token in zip(row.nodes, row.parents, row.tokens, strict=True):
            plan = self.plan(parent) or ()
            rest = plan[1:] if len(plan) > 1 and plan[0][0] == token else None
            self.nodes[name] = PlannedNode(parent, token, self.index_after(parent), rest)

    def plan(self, name: int) -> Plan | None:
        """Return the plan after a node or the prefix; None if not requested yet."""
        return self._prefix_plan if name == PREFIX else self.nodes[name].plan

    def set_plan(self, name: int, plan: Plan) -> None:
        self.nodes[name].plan = plan

    def _extend_prefix(self, kept: Sequence[PlannedNode]) -> None:
        super()._extend_prefix(kept)
        self._prefix_plan = kept[-1].plan


@dataclass(slots=True)
class OwnNode(TokenNode):
    """One own token. `prediction` is the model's best token after it, None if missing or not requested."""

    prediction: PredictedToken | None = None
    was_asked: bool = False


class OwnText(TokenTree[OwnNode]):
    """A kept prefix and a tree of tokens below it, fed or to be fed, with the model's best token after each.

    Texts are lists of token ids from the very first on. Names of nodes count up and are never reused.
    """

    __slots__ = ("_asked", "_children", "_dropped", "_next", "_pending", "sequence")

    def __init__(self, sequence: int) -> None:
        super().__init__()
        self.sequence = sequence
        self._children: dict[tuple[int, int], int] = {}
        # The nodes not fed yet, those with requested predictions, and roots of branches to prune.
        self._pending: list[int] = []
        self._asked: set[int] = set()
        self._dropped: list[int] = []
        self._next = 0

    @property
    def node_tokens(self) -> int:
        """The number of tokens fed and not kept."""
        return len(self.nodes) - len(self._pending)

    @property
    def is_empty(self) -> bool:
        """True if no token was fed yet."""
        return not self.tokens and not self.node_tokens

    def leads_to(self, ids: Sequence[int]) -> bool:
        """Return True if a text continues the kept prefix, so that it can be predicted."""
        return len(ids) > len(self.tokens) and list(ids[: len(self.tokens)]) == self.tokens.tolist()

    def continuation(self, ids: Sequence[int]) -> list[PredictedToken]:
        """Return the known continuation of a text, at most `MAX_CONTINUATION_TOKENS`."""
        name, known = self._walk(ids)
        predicted: list[PredictedToken] = []
        following: int | None = name if known == len(ids) else None
        while following is not None and len(predicted) < MAX_CONTINUATION_TOKENS:
            prediction = self.nodes[following].prediction
            if prediction is None:
                break
            predicted.append(prediction)
            following = self._children.get((following, prediction.token))
        return predicted

    def ask(self, ids: Sequence[int]) -> bool:
        """Request the prediction of one more token after a text; return False if there is none to make."""
        name, known = self._walk(ids)
        for token in ids[known:]:
            name = self._push(name, token)
        while (prediction := self.nodes[name].prediction) is not None:
            child = self._children.get((name, prediction.token))
            name = self._push(name, prediction.token) if child is None else child
        if self.nodes[name].was_asked:
            return False
        if name not in self._pending:
            # It was fed as part of another text without a prediction, and must be fed again.
            node = self.nodes[name]
            self.prune([name])
            self._dropped.append(name)
            name = self._push(node.parent, node.token)
        self._asked.add(name)
        return True

    def row(self, *, wants_nll: bool) -> Row | None:
        """Return the row to feed for the requested predictions. Only a chain has a likelihood."""
        if not self._pending:
            return None
        nodes = tuple(self._pending)
        row = Row(
            self.sequence,
            tuple(self.nodes[name].token for name in nodes),
            nodes,
            tuple(self.nodes[name].parent for name in nodes),
            scored_from=next(index for index, name in enumerate(nodes) if name in self._asked),
            candidates=1,
        )
        return replace(row, wants_nll=wants_nll and len(nodes) > 1 and row.is_chain)

    def absorb(self, row: Row, choices: Sequence[Choice]) -> None:
        """Note the predictions of a row that was fed."""
        for name, choice in zip(row.nodes[row.scored_from :], choices, strict=True):
            node = self.nodes[name]
            node.was_asked = True
            node.prediction = PredictedToken(*choice.candidates[0]) if choice.candidates else None
        self._pending.clear()
        self._asked.clear()

    def withdraw(self) -> None:
        """Withdraw the requests that were not fed."""
        self.prune(self._pending)

    def take_dropped(self) -> tuple[int, ...]:
        """Return the names dropped since the last call, for the engine to prune."""
        dropped, self._dropped = tuple(self._dropped), []
        return dropped

    def settle(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Keep the fed tokens of a certain text except its end; return the chain of nodes moved into the prefix."""
        path: list[int] = []
        name = PREFIX
        for token in ids[len(self.tokens) : -HELD_TOKENS]:
            child = self._children.get((name, token))
            if child is None:
                break
            path.append(name := child)
        self.keep(path)
        return tuple(path)

    def keep(self, path: Sequence[int]) -> list[OwnNode]:
        dropped = super().keep(path)
        self._children = {(node.parent, node.token): name for name, node in self.nodes.items()}
        return dropped

    def prune(self, names: Iterable[int]) -> list[OwnNode]:
        dropped = super().prune(names)
        for node in dropped:
            del self._children[node.parent, node.token]
        self._pending = [name for name in self._pending if name in self.nodes]
        self._asked &= self.nodes.keys()
        return dropped

    def _walk(self, ids: Sequence[int]) -> tuple[int, int]:
        """Return the last node of the tree on the way to a text, and the number of ids up to it."""
        name = PREFIX
        for known in range(len(self.tokens), len(ids)):
            child = self._children.get((name, ids[known]))
            if child is None:
                return name, known
            name = child
        return name, len(ids)

    def _push(self, parent: int, token: int) -> int:
        name = self._next
        self._next += 1
        self.nodes[name] = OwnNode(parent, token, self.index_after(parent))
        self._children[parent, token] = name
        self._pending.append(name)
        return name


@dataclass(slots=True)
class _TextPair:
    """A sequence of target tokens and, once needed, the inner one of the same text."""

    sampling: Sampling
    text: TargetText = field(default_factory=TargetText)
    own: OwnText | None = None
    settled_tokens: int = 0
    """Target tokens of the prefix when inner tokens were last kept."""
    is_contradicted: bool = False
    """True after a text whose own tokens do not begin with the kept ones."""


@dataclass(frozen=True, slots=True)
class _Unplanned:
    """A node without a plan, and the text down to it in target tokens and in own ones."""

    text: TargetText
    own: OwnText
    node: int
    tokens: Sequence[int]
    own_ids: Sequence[int]
    wants_nll: bool


@dataclass(slots=True)
class _Outcome:
    """The further outcome of a pass for a sequence: its text's negative log-likelihood in nats, or an error."""

    nats: float | None = None
    error: CosineError | None = None


class RetokenizedEngine:
    """Implements `cosine_node.engine.base.Engine` in target tokens around an engine with another tokenizer.

    The token after a node is that of the inner model's continuation, once more text cannot change it or
    `MAX_PASSES` are used up. Its confidence is the product of the inner model's probabilities. Further predictions
    serve the following nodes without another pass. There is no candidate after half a character, unless it was
    planned before, nor where the text exceeds the inner context or pool.

    `lead` are own tokens at the beginning of every text, `ends` own tokens after which no text follows. Tokens of
    pool and context are counted as `own_per_target` own ones. Sequences never share prefixes.
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
        self.grammars: Grammars | None = None
        """None: constraints are about target tokens, which the inner model does not know."""
        self.tells_likelihoods = False
        self._own = own
        self._target = target
        self._lead = tuple(lead)
        self._ends = ends
        self.vocab_tokens = vocab_tokens
        self._pairs: dict[int, _TextPair] = {}
        self._opened = 0
        self.own_per_target = own_per_target(own, target, vocab_tokens=vocab_tokens)

    @property
    def context_tokens(self) -> int:
        room = self._inner.context_tokens - len(self._lead) - MAX_PASSES
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
        """Own tokens that the inner engine holds; 0 once all sequences are released."""
        owns = [pair.own for pair in self._pairs.values() if pair.own is not None]
        return sum(len(own.tokens) + own.node_tokens for own in owns)

    @property
    def open_sequences(self) -> int:
        return len(self._pairs)

    def open(self, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        # A running pass in another thread may open inner sequences, so the inner one is opened later.
        number = self._opened
        self._opened += 1
        self._pairs[number] = _TextPair(sampling)
        return number

    def reuse_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        """Return 0."""
        if self._of(sequence).text.live_tokens:
            raise LocalProtocolError(f"Sequence {sequence} is not empty.")
        return 0

    def reserve(self, sequence: int, tokens: int) -> None:
        """Make room for such a text and its predictions in the inner pool. Raises `OutOfPages`."""
        own = self._own_of(self._of(sequence))
        self._inner.reserve(own.sequence, math.ceil(tokens * self.own_per_target) + MAX_PASSES)

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """Perform one pass, of up to `MAX_PASSES` inner ones. Raises `LocalProtocolError` without feeding anything.

        `nll` is that of a new sequence's text under the inner model, in nats per target token.
        """
        pairs = [self._of(row.sequence) for row in rows]
        if len({row.sequence for row in rows}) < len(rows):
            raise LocalProtocolError("A pass takes at most one row for a sequence.")
        for pair, row in zip(pairs, rows, strict=True):
            pair.text.check(row, vocab_tokens=self.vocab_tokens, context_tokens=self.context_tokens)
        with ExitStack() as on_error:
            # An inner pass may be abandoned or fail in the device; the sequences then stay as before it.
            on_error.callback(self._unfeed, rows)
            unplanned = [node for pair, row in zip(pairs, rows, strict=True) for node in self._begin(pair, row)]
            drafted = self._plan_all(unplanned)
            on_error.pop_all()
        return [self._result(pair, row, drafted) for pair, row in zip(pairs, rows, strict=True)]

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
            # Drafts match the target's likeliest text, which depends on a penalty but not on the temperature.
            sampling = Sampling(repetition_penalty=pair.sampling.repetition_penalty)
            pair.own = OwnText(self._inner.open(sampling=sampling, prompt_tokens=0))
        return pair.own

    def _unfeed(self, rows: Sequence[Row]) -> None:
        for row in rows:
            pair = self._of(row.sequence)
            pair.text.prune(row.nodes)
            if pair.own is not None:
                pair.own.withdraw()

    def _begin(self, pair: _TextPair, row: Row) -> Iterator[_Unplanned]:
        """Feed a row, and yield its nodes without a plan."""
        self._settle(pair)
        own, text = self._own_of(pair), pair.text
        wants_nll = row.wants_nll and own.is_empty and not text.live_tokens
        text.add(row)
        scored = row.nodes[row.scored_from :]
        for name in scored or row.nodes[-1:] if wants_nll else scored:
            if text.plan(name) is not None:
                continue
            tokens = text.tokens_to(name)
            own_ids = self._own_ids(tokens)
            if own.leads_to(own_ids):
                yield _Unplanned(text, own, name, tokens, own_ids, wants_nll)
            else:
                pair.is_contradicted |= bool(own_ids)
                text.set_plan(name, ())

    def _settle(self, pair: _TextPair) -> None:
        """Let the inner engine keep the certain text if due, or start again if it kept the wrong tokens."""
        own, text = self._own_of(pair), pair.text
        is_due = own.node_tokens >= SETTLE_TOKENS and len(text.tokens) > pair.settled_tokens
        if not is_due and not pair.is_contradicted:
            return
        ids = self._certain_ids(text.tokens)
        if pair.is_contradicted or not own.leads_to(ids):
            self._inner.release(own.sequence)
            pair.own = None
        else:
            self._inner.keep(own.sequence, own.settle(ids))
        pair.settled_tokens, pair.is_contradicted = len(text.tokens), False

    def _own_ids(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return a text in own tokens; empty if the inner model cannot continue it."""
        if self._target.decode(tokens).endswith(REPLACEMENT):
            return ()
        ids = self._certain_ids(tokens)
        is_readable = max(ids, default=0) < self._inner.vocab_tokens
        return ids if is_readable and len(ids) <= self._inner.context_tokens else ()

    def _certain_ids(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return a text in own tokens, without half a character at its end."""
        return [*self._lead, *self._own.encode(decode_whole(self._target, tokens))]

    def _plan_all(self, nodes: Sequence[_Unplanned]) -> dict[int, _Outcome]:
        """Plan the tokens after every node; return the further outcomes by inner sequence."""
        results = {node.own.sequence: _Outcome() for node in nodes}
        waiting = list(nodes)
        for _ in range(MAX_PASSES):
            waiting = [node for node in waiting if not self._is_planned(node)]
            if not waiting or not self._pass(waiting, results):
                break
            waiting = [node for node in waiting if results[node.own.sequence].error is None]
        for node in waiting:
            self._plan(node, After.UNKNOWN)
        return results

    def _is_planned(self, node: _Unplanned) -> bool:
        """Plan the tokens after a node if they are known, else request one more own token."""
        if self._plan(node, After.MORE):
            return True
        own_tokens = len(node.own_ids) + len(node.own.continuation(node.own_ids))
        if own_tokens <= self._inner.context_tokens and node.own.ask(node.own_ids):
            return False
        self._plan(node, After.UNKNOWN)
        return True

    def _plan(self, node: _Unplanned, after: After) -> bool:
        """Plan the tokens after a node; return False if there are none to plan yet."""
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

    def _pass(self, nodes: Sequence[_Unplanned], results: dict[int, _Outcome]) -> bool:
        """Feed the requested tokens of the nodes; return False, with nothing fed, if the inner pool is full."""
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

    def _result(self, pair: _TextPair, row: Row, drafted: dict[int, _Outcome]) -> RowResult:
        """Return a row's planned tokens with their confidence as margin; token 0, margin 0 without a plan."""
        drafting = drafted.get(pair.own.sequence, _Outcome()) if pair.own is not None else _Outcome()
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
