"""One request at a drafter: its live tree, the row to feed next, and the nodes worth sending. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_node.drafter.observer import NO_GUESS, TextObserver
from cosine_node.engine.base import PREFIX, Choice, Row
from cosine_node.engine.constraints.grammars import FORCED_PROBABILITY, MAX_FORCED, Guide, Place
from cosine_node.passes.counts import DrafterCounts
from cosine_p2p.strategy.fusion import Calibration
from cosine_p2p.strategy.tree import Block, LiveTree, TreeNode, block_below, connected
from cosine_protocol.limits import MAX_TREE_DEPTH

URGENT_DEPTH: Final = 3
"""A verifier commits one to three tokens a pass, so that a pass may already wait for nodes this near."""
EXPECTED: Final = 0.5
"""A path that is more likely than not waits for nothing: a pass that begins before it comes loses a token. Twenty
recorded texts, 20 ms away: 1.005 times as fast as with all held, for 1 % more bytes; with 0.01 1.013, for 27 %."""
MIN_PROBABILITY: Final = 1e-6
"""Of a guess, or a token that the model holds for impossible: its logarithm stays finite."""
USUAL_RARITY: Final = 100
"""Bounds bytes: a path less likely than one in so many waits until a commit makes it likelier."""
MAX_CANDIDATES: Final = 8
"""Tokens a node may branch into: 8 instead of 4 brought more accepted tokens on the split tune."""
MAX_NODES: Final = 8192
"""Bounds the memory of a request: the largest window a client may ask for, and what some passes over it grow."""


@dataclass(frozen=True, slots=True)
class TokenCandidate:
    """A token the model gave after a node, with its own estimate of the probability before calibration."""

    token: int
    estimate: float
    is_first: bool


@dataclass(slots=True)
class DraftState:
    """The drafter's own record of a node: its name in the engine, and what the model says of it and after it.

    `log_path_probability` is that of the whole path, 0 for the root, `draft_probability` that of the token given
    its parent. `estimate` is the latter before calibration, None for a token that the model did not propose.
    `candidates` may follow the token, and are too unlikely to draft so far; `first` is the model's first choice.
    One that `is_forced` was drafted because the request's constraint leaves no choice.
    """

    name: int
    log_path_probability: float
    draft_probability: float = 1.0
    estimate: float | None = None
    is_first: bool = False
    is_fed: bool = False
    candidates: tuple[TokenCandidate, ...] = ()
    first: TokenCandidate | None = None
    is_forced: bool = False


@dataclass(frozen=True, slots=True)
class Branch:
    """The assignment of a client that knows the prefix `base`: draft `depth` tokens deep, `width` nodes a pass.

    At most `window` nodes may be sent and neither committed nor rejected. Paths less likely than one in `rarity`
    wait until a commit makes them likelier.
    """

    base: bytes
    depth: int
    width: int
    window: int
    rarity: int = USUAL_RARITY


class DraftTree:
    """The live tree of a drafter, whose root is the last known token; nothing is drafted before `assign`.

    `plan` gives the row to feed, `absorb` takes its result. The known tokens at the engine that are not yet in its
    prefix (`take_kept`) are nodes too. Nodes far below the root that are not expected to be committed are held back
    for up to `held_passes` passes.
    With `measures_prompt` the first row asks how likely the prompt is. What is committed is counted in `counts`, by
    positions and first choices, and told to an `observer`. What must follow a node by a `guide` is drafted with it
    and fed in one pass. A drafter that `rereads` feeds what it drafted anew once it is committed: it read it beside
    its own guesses, and begins its drafts again.
    """

    def __init__(
        self,
        d_0: bytes,
        prompt: Sequence[int],
        committed: Sequence[int],
        calibration: Calibration,
        *,
        held_passes: int = 0,
        measures_prompt: bool = True,
        rereads: bool = False,
        counts: DrafterCounts | None = None,
        observer: TextObserver | None = None,
        guide: Guide | None = None,
    ) -> None:
        self._guide = guide
        self._place: Place | None = None
        self._output: list[int] = []
        self.branch: Branch | None = None
        self._prompt_tokens = len(prompt)
        self._calibration = calibration
        self._held_passes = held_passes
        self._rereads = rereads
        # A node may be fed `depth` tokens below the root, which grows children one deeper.
        max_depth = MAX_TREE_DEPTH + 1
        self._tree = LiveTree(d_0, last_token=prompt[-1], max_nodes=MAX_NODES, max_depth=max_depth)
        self._known = [*(TreeNode(d_0, token, -1) for token in prompt[:-1]), self._tree.root]
        self._states: dict[TreeNode, DraftState] = {}
        self._by_name: dict[int, TreeNode] = {}
        self._next_name = 0
        for node in self._known:
            self._name(node, 0.0)
        self._dropped: list[int] = []
        self._sent: set[TreeNode] = set()
        self._counts = counts or DrafterCounts()
        self._observer = observer
        self._unsent: list[TreeNode] = []
        self._passes_unsent = 0
        self._wants_nll = measures_prompt
        self.advance(0, committed)

    @property
    def digest(self) -> bytes:
        """The digest of the known prefix."""
        return self._tree.root.digest

    @property
    def position(self) -> int:
        """Known output tokens."""
        return self._tree.position

    @property
    def unresolved(self) -> int:
        """Nodes sent, or about to be, that may still be committed."""
        return len(self._sent) + sum(map(self._is_possible, self._unsent))

    @property
    def unread_tokens(self) -> int:
        """Known tokens that were not fed yet."""
        return sum(not self._states[node].is_fed for node in self._known)

    def tokens_fed_after(self, row: Row) -> int:
        """The length of the longest fed path once a row is fed: what must fit in the context."""
        deepest = max(self._by_name[name].position for name in row.nodes)
        return self._prompt_tokens + deepest + 1

    def assign(self, branch: Branch) -> Block | None:
        """Draft so from now on; returns nodes known already and worth sending now."""
        self.branch = branch
        return self._regrow()

    def plan(self, sequence: int) -> Row | None:
        """The next row to feed, if any: known tokens first, else the most probable unfed nodes."""
        parents: dict[TreeNode, int] = {}
        before = PREFIX
        for node in self._known:
            parents[node] = before
            before = self._states[node].name
        known = [node for node in self._known if not self._states[node].is_fed]
        nodes = known or self._frontier()
        if not nodes:
            return None
        if not self._wants_nll:
            nodes = [*nodes, *self._forced_below(nodes[-1:] if known else nodes)]
        is_chain = self.branch is not None and self.branch.width == 1
        return Row(
            sequence,
            tuple(node.token for node in nodes),
            tuple(self._states[node].name for node in nodes),
            tuple(parents[node] if node.parent is None else self._states[node.parent].name for node in nodes),
            scored_from=len(known) - 1 if known else 0,
            candidates=1 if is_chain else MAX_CANDIDATES,
            wants_nll=self._wants_nll,
        )

    def _forced_below(self, nodes: Sequence[TreeNode]) -> Iterator[TreeNode]:
        """The unfed nodes in a row below each of these that a constraint forces."""
        states = self._states
        for above in nodes:
            node: TreeNode | None = above
            while node is not None:
                children = node.children.values()
                node = next((one for one in children if states[one].is_forced and not states[one].is_fed), None)
                if node is not None:
                    yield node

    def _frontier(self) -> list[TreeNode]:
        """Unfed nodes below fed ones, the most probable first, as many as the branch allows."""
        branch = self.branch
        if branch is None or self.unresolved >= branch.window:
            return []
        states, deepest = self._states, self.position + branch.depth
        root, least = self._likely()
        unfed = [
            (-state.log_path_probability, state.name, node)
            for node, state in states.items()
            if not state.is_fed
            and node.parent is not None
            and node.position < deepest
            and states[node.parent].is_fed
            and state.log_path_probability - root >= least
        ]
        unfed.sort()
        return [node for _, _, node in unfed[: branch.width]]

    @property
    def reach_probability(self) -> float:
        """Probability that the text runs through a node that the next row feeds, known tokens aside."""
        root = self._states[self._tree.root].log_path_probability
        return sum(math.exp(self._states[node].log_path_probability - root) for node in self._frontier())

    def _likely(self) -> tuple[float, float]:
        """The log path probability of the root, and by how much that of a node may differ which is drafted."""
        assert self.branch is not None
        least = -math.inf if self.branch.width == 1 else -math.log(self.branch.rarity)
        return self._states[self._tree.root].log_path_probability, least

    def _is_expected(self, node: TreeNode) -> bool:
        root = self._states[self._tree.root]
        return self._states[node].log_path_probability - root.log_path_probability >= math.log(EXPECTED)

    def absorb(self, row: Row, choices: Sequence[Choice]) -> Block | None:
        """Take a pass's result; returns the nodes worth sending, if any.

        Nodes near the root and expected ones are sent at once, since a pass may wait for them; the others every few
        passes.
        """
        self._wants_nll = False
        for name in row.nodes:
            if node := self._by_name.get(name):
                self._states[node].is_fed = True
        grown: list[TreeNode] = []
        for name, choice in zip(row.nodes[row.scored_from :], choices, strict=True):
            parent = self._by_name.get(name)
            if parent is not None and self._is_live(parent):
                state = self._states[parent]
                state.candidates = tuple(
                    TokenCandidate(token, estimate, rank == 0)
                    for rank, (token, estimate) in enumerate(choice.candidates)
                )
                state.first = next(iter(state.candidates), None)
                grown.extend(self._branch_out(parent))
        self._unsent += grown
        self._passes_unsent += 1
        is_urgent = any(
            node.position - self._tree.root.position <= URGENT_DEPTH or self._is_expected(node) for node in grown
        )
        if is_urgent or self._passes_unsent > self._held_passes or not self._frontier():
            return self._flush()
        return None

    def advance(self, position: int, tokens: Sequence[int]) -> Block | None:
        """Commit output tokens from `position` on; those known already are skipped, a gap is ignored.

        Returns nodes that were too unlikely before and are worth sending now.
        """
        known = self.position - position
        if known < 0:
            return None
        for token in tokens[known:]:
            root = self._tree.root
            offered = {child.token for child in root.children.values() if child in self._sent}
            self._counts.offered_positions += bool(offered)
            self._counts.taken_tokens += token in offered
            self._note_first_choice(root, token)
            for child in list(root.children.values()):
                state = self._states[child]
                if state.estimate is not None:
                    self._calibration.observe(state.estimate, is_first=state.is_first, hit=child.token == token)
                if child.token != token:
                    self._drop(child)
            self._tree.advance([token])
            self._output.append(token)
            committed = self._tree.root
            if committed not in self._states:
                self._name(committed, self._states[root].log_path_probability)
            self._known.append(committed)
            self._sent.discard(committed)
        if self._rereads:
            self._begin_drafts_again(tokens[known:])
        self._place = None if self._guide is None else self._guide.place(self._output)
        return self._regrow()

    def _begin_drafts_again(self, committed: Sequence[int]) -> None:
        """Drop all drafts, and let the last known tokens, so many as were `committed`, be fed anew."""
        for child in self._tree.root.children.values():
            self._drop(child)
        self._tree.clear()
        for node in self._known[len(self._known) - len(committed) :]:
            probability = self._states[node].log_path_probability
            self._dropped.append(self._forget(node))
            self._name(node, probability)

    def _note_first_choice(self, root: TreeNode, token: int) -> None:
        """Count whether the model's first choice after the root was the committed token, and show it."""
        first = self._states[root].first
        is_right = first is not None and first.token == token
        self._counts.first_choices += first is not None
        self._counts.right_first_choices += is_right
        if self._observer is not None:
            self._observer.note(self.position, token, guess=NO_GUESS if first is None else first.token)

    def take_kept(self) -> tuple[int, ...]:
        """Names of known nodes, in order, for the engine to move into its prefix; the root always stays a node."""
        kept = []
        while len(self._known) > 1 and self._states[self._known[0]].is_fed:
            kept.append(self._forget(self._known.pop(0)))
        return tuple(kept)

    def take_dropped(self) -> tuple[int, ...]:
        """Names dropped since the last call, for the engine to prune."""
        dropped, self._dropped = tuple(self._dropped), []
        return dropped

    def _regrow(self) -> Block | None:
        """Draft candidates that have become likely enough, and what must follow the known tokens."""
        self._unsent += self._grow_forced(self._tree.root)
        waiting = [node for node, state in self._states.items() if state.candidates and self._is_live(node)]
        self._unsent += [child for node in waiting for child in self._branch_out(node)]
        return self._flush()

    def _branch_out(self, parent: TreeNode) -> list[TreeNode]:
        """Give a node those of its candidates as children that are likely enough by now; the rest wait."""
        if self.branch is None:
            return []
        state, calibration = self._states[parent], self._calibration
        grown, waiting = [], []
        root, least = self._likely()
        for candidate in state.candidates[: 1 if self.branch.width == 1 else None]:
            probability = calibration(candidate.estimate, is_first=candidate.is_first)
            log_path_probability = state.log_path_probability + math.log(max(probability, MIN_PROBABILITY))
            child = parent.children.get(candidate.token)
            if child is None:
                if log_path_probability - root < least:
                    waiting.append(candidate)
                    continue
                child = self._grow(parent, candidate.token, log_path_probability, probability)
                if child is None:
                    continue
                grown += [child, *self._grow_forced(child)]
            own = self._states[child]
            own.estimate, own.is_first, own.draft_probability = candidate.estimate, candidate.is_first, probability
        state.candidates = tuple(waiting)
        return grown

    def _grow_forced(self, node: TreeNode) -> list[TreeNode]:
        """Let what a constraint forces after a node be a chain below it; the new nodes, if there is no choice."""
        if self.branch is None or self._place is None:
            return []
        tokens: list[int] = []
        above = node
        while above.parent is not None:
            tokens.append(above.token)
            above = above.parent
        place = self._place.after(tokens[::-1])
        deepest = self.position + self.branch.depth - 1
        grown = []
        for token in () if place is None else place.forced()[:MAX_FORCED]:
            child = node.children.get(token)
            if child is None and node.position < deepest:
                log_path_probability = self._states[node].log_path_probability + math.log(FORCED_PROBABILITY)
                child = self._grow(node, token, log_path_probability, FORCED_PROBABILITY)
                grown += [] if child is None else [child]
            if child is None:
                break
            self._states[child].is_forced = True
            node = child
        return grown

    def _flush(self) -> Block | None:
        """The block of all nodes not sent yet, if any may still be committed."""
        self._passes_unsent = 0
        unsent = [node for node in self._unsent if self._is_possible(node)]
        self._unsent = []
        if not unsent:
            return None
        base, nodes = connected(self._tree, unsent)
        self._sent.update(set(unsent) & set(nodes))
        return block_below(base, nodes, lambda node: (0, self._states[node].draft_probability))

    def _is_live(self, node: TreeNode) -> bool:
        """True for the root and the nodes below it."""
        return node is self._tree.root or node.parent is not None

    def _is_possible(self, node: TreeNode) -> bool:
        """True for a node that is neither committed nor dropped."""
        return node in self._states and node.parent is not None

    def _grow(
        self, parent: TreeNode, token: int, log_path_probability: float, draft_probability: float
    ) -> TreeNode | None:
        node = self._tree.grow(parent, token)
        if node is not None:
            self._name(node, log_path_probability, draft_probability)
        return node

    def _name(self, node: TreeNode, log_path_probability: float, draft_probability: float = 1.0) -> None:
        self._states[node] = DraftState(self._next_name, log_path_probability, draft_probability)
        self._by_name[self._next_name] = node
        self._next_name += 1

    def _drop(self, top: TreeNode) -> None:
        pending = [top]
        while pending:
            node = pending.pop()
            self._sent.discard(node)
            self._dropped.append(self._forget(node))
            pending.extend(node.children.values())

    def _forget(self, node: TreeNode) -> int:
        name = self._states.pop(node).name
        del self._by_name[name]
        return name
