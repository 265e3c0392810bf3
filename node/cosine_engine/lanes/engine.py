"""The engine on a model whose memory holds lanes; it needs no torch."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from cosine_engine.base import PREFIX, Row, RowResult
from cosine_engine.constraints.grammars import Grammars
from cosine_engine.kv_pool import PagePool
from cosine_engine.lanes import sampling
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
from cosine_engine.logits_engine import LogitsEngine
from cosine_engine.tree import FedNode, Feeds
from cosine_engine.vocabulary import ALL_TOKENS, KnownTokens


@dataclass(frozen=True, slots=True)
class _Pending:
    """A node in its lane that is not fed yet. The likelihood of its `follower`, if any, is part of the row's."""

    sequence: int
    name: int
    depth: int
    node: FedNode
    is_wanted: bool
    follower: int | None


class LaneEngine(LogitsEngine):
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
        known: KnownTokens = ALL_TOKENS,
        grammars: Grammars | None = None,
    ) -> None:
        super().__init__(
            PagePool(tokens=pool_tokens),
            sampling,
            vocab_tokens=vocab_tokens,
            context_tokens=context_tokens,
            numerics=numerics,
            known=known,
            grammars=grammars,
        )
        self._model = model
        self._lanes = Lanes(model, lanes=model.lanes)
        self._idle = IdleLanes(model, self._lanes, self._prefixes)
        self._pending: list[_Pending] = []
        # The wanted logits of the present pass, and the sum of the losses of each sequence that asks for it.
        self._found: list[Floats] = []
        self._losses: dict[int, float] = {}

    @property
    def free_lanes(self) -> int:
        return self._lanes.free_lanes

    @property
    def nll_of(self) -> Callable[[Row], float]:
        """The logits of a long prompt would take much memory, so losses are added up as they come."""
        return lambda row: self._losses[row.sequence] / (len(row.tokens) - 1)

    def abandon(self) -> None:
        self._model.abandon()

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        results = super().forward(rows)
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
        """Run one pass as `forward`; return copies of the logits [vocab] after each token of the rows."""
        with self.feeding(rows) as feeds:
            return list(self.pass_logits(feeds, list(range(sum(len(row.tokens) for row in rows)))))

    def pass_logits(self, feeds: Feeds, wanted: list[int]) -> Floats:
        self._model.begin()
        self._found, self._losses = [], {row.sequence: 0.0 for _, row in feeds if row.wants_nll}
        asked, position = set(wanted), 0
        for _, row in feeds:
            followers = [*row.tokens[1:], None] if row.wants_nll else [None] * len(row.tokens)
            for name, follower in zip(row.nodes, followers, strict=True):
                self._feed_node(row.sequence, name, is_wanted=position in asked, follower=follower)
                position += 1
        self._flush()
        found, self._found = self._found, []
        return found[0] if len(found) == 1 else np.concatenate(found)

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

    def _feed_node(self, sequence: int, name: int, *, is_wanted: bool = False, follower: int | None = None) -> None:
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
        self._pending.append(_Pending(sequence, name, depth + 1, node, is_wanted, follower))

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
            self._feed_node(sequence, lost)

    def _evict_until(self, has_room: Callable[[], bool]) -> bool:
        """Evict cached prefixes until there is room; return False if there are none left."""
        while not has_room():
            if not self._prefixes.forget_oldest():
                return False
            self._idle.tidy(self._prefixes_of_open())
        return True

    def _flush(self) -> None:
        """Feed the pending nodes, and keep the requested logits, which are valid until the next call."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        fed = []
        for one in pending:
            lanes = self._lanes.numbers(one.sequence, one.name, one.depth)
            is_asked = one.is_wanted or one.follower is not None
            fed.append(FedToken(one.node.token, one.node.index, lanes, is_asked))
        try:
            logits = self._model.logits(fed)
        except BaseException:
            for sequence in {node.sequence for node in pending}:
                lost = {node.name for node in pending if node.sequence == sequence}
                self._lanes.prune(sequence, lost, prefix_tokens=len(self.tree(sequence).tokens))
            raise
        asked = [one for one, token in zip(pending, fed, strict=True) if token.is_wanted]
        for one, row in zip(asked, logits, strict=True):
            if one.follower is not None:
                self._losses[one.sequence] += sampling.mean_nll(row[None], [one.follower])
        self._found.append(logits[[place for place, one in enumerate(asked) if one.is_wanted]])
