"""The engine on a model whose memory holds lanes; it needs no torch."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from cosine_engine.base import PREFIX, Choice, Row, RowResult
from cosine_engine.kv_pool import PagePool
from cosine_engine.lanes.lanes import (
    FedToken,
    Floats,
    IdleLanes,
    LaneModel,
    Lanes,
    NoLane,
    PrefixLane,
    parts_of,
    shared_tokens,
)
from cosine_engine.lanes.sampling import choose, likelihood_after
from cosine_engine.paged import PagedEngine
from cosine_engine.sampling import Query, failure_of, row_queries
from cosine_engine.tree import FedNode, SequenceTree
from cosine_engine.vocabulary import DraftVocabulary
from cosine_protocol.verify import Likelihood


@dataclass(slots=True)
class _Outcome:
    """The outcome of a row so far."""

    choices: list[Choice | None] = field(default_factory=list)
    nll: float = 0.0
    logits: list[Floats] = field(default_factory=list)
    likelihoods: list[Likelihood] = field(default_factory=list)

    def result(self, tree: SequenceTree, row: Row) -> RowResult:
        choices = tuple(choice for choice in self.choices if choice is not None)
        # Only NaN differs from itself.
        if len(choices) < len(self.choices) or self.nll != self.nll:
            return RowResult(choices=(), error=failure_of(tree, row))
        followers = len(row.tokens) - 1
        nll = self.nll / followers if row.wants_nll and followers else None
        return RowResult(choices=choices, nll=nll, likelihoods=tuple(self.likelihoods))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A request for the logits after a token: for a choice, for the likelihood of a token, or as they are.

    With `tells` the likelihood of `told`, or of the choice if that is None, is reported with `top` others.
    """

    outcome: _Outcome
    query: Query | None = None
    follower: int | None = None
    is_copied: bool = False
    tells: bool = False
    told: int | None = None
    top: int = 0


@dataclass(frozen=True, slots=True)
class _Pending:
    """A node in its lane that is not fed yet."""

    sequence: int
    name: int
    depth: int
    node: FedNode
    wanted: _Wanted | None


class LaneEngine(PagedEngine):
    """Implements `cosine_engine.base.Engine`; not thread-safe.

    Pages and slots are counted as in the base; each used slot is a token in the model's memory. A pass of more
    tokens than the model takes at once, or more branches than there are lanes, is several calls of the model.
    `load_llama` and `load_vllm` create one.
    """

    def __init__(
        self,
        model: LaneModel,
        *,
        pool_tokens: int,
        vocab_tokens: int,
        context_tokens: int,
        numerics: str,
        vocabulary: DraftVocabulary | None = None,
        known_tokens: int | None = None,
    ) -> None:
        """Create it; of a drafter's own ids in `vocabulary`, those from `known_tokens` on are never chosen."""
        pool = PagePool(tokens=pool_tokens)
        super().__init__(
            pool,
            vocab_tokens=vocab_tokens,
            context_tokens=min(context_tokens, pool.capacity_tokens),
            numerics=numerics,
        )
        self.tells_likelihoods = True
        self._model = model
        self._vocabulary, self._known_tokens = vocabulary, known_tokens
        self._lanes = Lanes(model, lanes=model.lanes)
        self._idle = IdleLanes(model, self._lanes, self._prefixes)
        self._pending: list[_Pending] = []

    @property
    def free_lanes(self) -> int:
        return self._lanes.free_lanes

    def abandon(self) -> None:
        self._model.abandon()

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        """Perform one pass. Raises `LocalProtocolError`, `OutOfPages`, `OutOfMemory` or `PassAbandoned`."""
        trees = self.feed(rows)
        outcomes = [_Outcome() for _ in rows]
        wanted: list[list[_Wanted | None]] = []
        for tree, row, outcome in zip(trees, rows, outcomes, strict=True):
            queries: list[Query | None] = [*[None] * row.scored_from, *row_queries(tree, row)]
            followers: list[int | None] = [*row.tokens[1:], None] if row.wants_nll else [None] * len(queries)
            told = [None] * row.told_from + list(row.followers)
            wanted.append(
                [
                    None
                    if query is None and follower is None and place < row.told_from
                    else _Wanted(
                        outcome, query, follower, tells=place >= row.told_from, told=told[place], top=row.top
                    )
                    for place, (query, follower) in enumerate(zip(queries, followers, strict=True))
                ]
            )
        self._pass(rows, wanted)
        results = [outcome.result(tree, row) for tree, row, outcome in zip(trees, rows, outcomes, strict=True)]
        if all(result.error is None for result in results):
            return results
        # NaN may have spread from its row to others, and to all tokens fed later.
        self.unfeed(rows)
        self._feed_anew()
        if len(rows) == 1:
            return results
        with ExitStack() as on_error:
            on_error.callback(self.unfeed, rows)
            alone = [self.forward([row])[0] for row in rows]
            on_error.pop_all()
        return alone

    def logits(self, rows: Sequence[Row]) -> list[Floats]:
        """Perform one pass as `forward`; return copies of the logits [vocab] after each token of the rows."""
        self.feed(rows)
        outcome = _Outcome()
        self._pass(rows, [[_Wanted(outcome, is_copied=True)] * len(row.tokens) for row in rows])
        return outcome.logits

    def reuse_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        if not self._lanes.free_lanes and not self._lanes.give_up_branch():
            # Its tokens are fed without sharing, and wait for a lane.
            return super().reuse_prefix(sequence, ())
        count = super().reuse_prefix(sequence, tokens)
        if count:
            holding = self._prefixes_of_open() + self._idle.prefixes
            lane = self._lanes.begin(sequence)
            for part in parts_of(self.tree(sequence).slots, holding):
                self._model.share(part.number, lane, part.start, part.stop)
        return count

    def keep(self, sequence: int, path: Sequence[int]) -> None:
        if path and path[-1] in self.tree(sequence).nodes:
            # Its lane may have been given up.
            self._model.begin()
            self._feed_again(sequence, path[-1])
            self._flush()
        super().keep(sequence, path)
        if path:
            self._lanes.keep(sequence, path)

    def prune(self, sequence: int, nodes: Sequence[int]) -> None:
        tree = self.tree(sequence)
        before = set(tree.nodes)
        super().prune(sequence, nodes)
        if gone := before - tree.nodes.keys():
            self._lanes.prune(sequence, gone, prefix_tokens=len(tree.tokens))

    def release(self, sequence: int) -> None:
        slots = self.tree(sequence).slots
        hashes = self._hashes.get(sequence)
        super().release(sequence)
        if hashes is None or not hashes.hashes:
            self._lanes.release(sequence)
        elif (lane := self._lanes.leave(sequence)) is not None:
            self._idle.add(lane, slots, hashes.hashes, self._prefixes_of_open())

    def forget_prefixes(self) -> None:
        """Evict all cached prefixes that no open sequence uses."""
        while self._prefixes.forget_oldest():
            pass
        self._idle.tidy(self._prefixes_of_open())

    def _feed_anew(self) -> None:
        """Empty the model's memory and feed the prefixes of all open sequences again; nodes follow when needed."""
        self.forget_prefixes()
        for sequence in self._trees:
            self._lanes.release(sequence)
        self._model.clear()
        fed: list[PrefixLane] = []
        for sequence, tree in self._trees.items():
            if not tree.slots:
                continue
            lane = self._lanes.begin(sequence)
            shared = shared_tokens(tree.slots, fed)
            for part in parts_of(tree.slots[:shared], fed):
                self._model.share(part.number, lane, part.start, part.stop)
            for start in range(shared, len(tree.tokens), self._model.pass_tokens):
                piece = tree.tokens[start : start + self._model.pass_tokens]
                self._model.logits([FedToken(token, start + i, [lane], False) for i, token in enumerate(piece)])
            fed.append(PrefixLane(lane, tree.slots))

    def _reserve(self, demands: Mapping[int, int]) -> None:
        forgotten = self._prefixes.forgotten_blocks
        super()._reserve(demands)
        if self._prefixes.forgotten_blocks > forgotten:
            self._idle.tidy(self._prefixes_of_open())

    def _prefixes_of_open(self) -> list[PrefixLane]:
        """Return the prefixes of the open sequences, each in the first lane of its sequence."""
        return [
            PrefixLane(lanes[0].number, tree.slots)
            for sequence, tree in self._trees.items()
            if (lanes := self._lanes.of(sequence))
        ]

    def _pass(self, rows: Sequence[Row], wanted: Sequence[Sequence[_Wanted | None]]) -> None:
        """Feed rows that are already in their trees, all or none, and take the requested outputs of each token."""
        self._model.begin()
        with ExitStack() as on_error:
            on_error.callback(self.unfeed, rows)
            for row, of_row in zip(rows, wanted, strict=True):
                for name, want in zip(row.nodes, of_row, strict=True):
                    self._feed_node(row.sequence, name, want)
            self._flush()
            on_error.pop_all()

    def _feed_node(self, sequence: int, name: int, wanted: _Wanted | None) -> None:
        """Put a node into a lane, after its ancestors; the model is called once enough are pending."""
        tree = self.tree(sequence)
        node = tree.nodes[name]
        self._feed_again(sequence, node.parent)
        prefix_tokens = len(tree.tokens)
        depth = node.index - prefix_tokens
        if len(self._pending) == self._model.pass_tokens:
            self._flush()
        while True:
            try:
                self._lanes.extend(sequence, node.parent, depth, name, prefix_tokens=prefix_tokens)
                break
            except NoLane:
                self._flush()
                if not self._evict_until(lambda: self.free_lanes > 0) and not self._lanes.give_up_branch(
                    sequence=sequence, parent=node.parent, depth=depth
                ):
                    self._lanes.cut_back(sequence, node.parent, depth, prefix_tokens=prefix_tokens)
        self._pending.append(_Pending(sequence, name, depth + 1, node, wanted))

    def _feed_again(self, sequence: int, name: int) -> None:
        """Feed a node and its ancestors that are in no lane any more, the uppermost first."""
        tree = self.tree(sequence)
        missing = []
        while name != PREFIX:
            node = tree.nodes[name]
            if self._lanes.numbers(sequence, name, node.index - len(tree.tokens) + 1):
                break
            missing.append(name)
            name = node.parent
        for lost in reversed(missing):
            self._feed_node(sequence, lost, None)

    def _evict_until(self, has_room: Callable[[], bool]) -> bool:
        """Evict cached prefixes until there is room; return False if there are none left."""
        while not has_room():
            if not self._prefixes.forget_oldest():
                return False
            self._idle.tidy(self._prefixes_of_open())
        return True

    def _flush(self) -> None:
        """Feed the pending nodes, and take the requested outputs from their logits."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        fed = []
        for one in pending:
            lanes = self._lanes.numbers(one.sequence, one.name, one.depth)
            fed.append(FedToken(one.node.token, one.node.index, lanes, one.wanted is not None))
        try:
            logits = self._model.logits(fed)
        except BaseException:
            for sequence in {node.sequence for node in pending}:
                lost = {node.name for node in pending if node.sequence == sequence}
                self._lanes.prune(sequence, lost, prefix_tokens=len(self.tree(sequence).tokens))
            raise
        wanted = [node.wanted for node in pending if node.wanted is not None]
        scored = [place for place, want in enumerate(wanted) if want.query is not None]
        chosen = choose(
            logits if len(scored) == len(wanted) else logits[scored],
            [want.query for want in wanted if want.query is not None],
            self._vocabulary,
            known_tokens=self._known_tokens,
        )
        choices = dict(zip(scored, chosen, strict=True))
        for place, (want, row) in enumerate(zip(wanted, logits, strict=True)):
            if want.query is not None:
                want.outcome.choices.append(choices[place])
            self._take(want, row, choices.get(place))

    def _take(self, want: _Wanted, row: Floats, choice: Choice | None) -> None:
        """Take the other requested outputs from the logits after one token; a row without its choice has failed."""
        token = choice.token if want.told is None and choice is not None else want.told
        if want.tells and token is not None:
            told = likelihood_after(row, token, top=want.top, known_tokens=self._known_tokens)
            want.outcome.likelihoods.append(told)
        if want.follower is not None:
            # The negative log-likelihood of the next token; NaN for logits with NaN.
            with np.errstate(invalid="ignore"):
                peak = row.max()
                total = np.exp(row - peak).sum(dtype=np.float64)
            want.outcome.nll += float(np.log(total) - (float(row[want.follower]) - float(peak)))
        if want.is_copied:
            # The model's memory holds the logits only until the next pass.
            want.outcome.logits.append(row.copy())
