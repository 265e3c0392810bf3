"""The live tree of a request at a drafter, its next row, and the nodes to send. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_engine.base import PREFIX, Choice, Row
from cosine_engine.constraints.grammars import FORCED_PROBABILITY, MAX_FORCED, GrammarPlace, Guide
from cosine_node.passes.counts import DrafterCounts
from cosine_p2p.strategy.fusion import Calibration
from cosine_p2p.strategy.tree import Block, LiveTree, TreeNode, block_below, connected
from cosine_protocol.draft import MAX_TREE_DEPTH

URGENT_DEPTH: Final = 3
"""Nodes this close to the root are sent at once: a verifier commits one to three tokens per pass."""
EXPECTED: Final = 0.5
"""Likelier paths are sent at once. Twenty recorded texts, 20 ms away: 1.005 times as fast as with all held, for 1 %
more bytes; with 0.01 1.013 times, for 27 %."""
MIN_PROBABILITY: Final = 1e-6
USUAL_RARITY: Final = 100
"""Bounds traffic: less likely paths than one in `USUAL_RARITY` wait until a commit makes them likelier."""
MAX_CANDIDATES: Final = 8
"""Maximum number of children: 8 instead of 4 brought more accepted tokens on the split tune."""
MAX_NODES: Final = 8192
"""Bounds memory: the largest window of a client, and the growth of some passes."""


@dataclass(frozen=True, slots=True)
class TokenCandidate:
    """A possible next token, with the model's estimate of its probability before calibration."""

    token: int
    estimate: float
    is_first: bool


@dataclass(slots=True)
class DraftState:
    """The drafter's state of a node. `name` identifies it in the engine.

    log_path_probability: That of the whole path, 0 for the root.
    draft_probability: That of the token given its parent.
    estimate: The same before calibration. None if the model did not propose the token.
    candidates: Possible next tokens that are too unlikely so far.
    first: The model's first choice after it.
    is_forced: True if the request's constraint allows no other token.
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
    """The assignment of a client (`Assign`)."""

    base: bytes
    depth: int
    width: int
    window: int
    rarity: int = USUAL_RARITY


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRules:
    """The settings of a drafter for all its requests.

    held_passes: Number of passes for which distant and unlikely nodes may be held back.
    measures_prompt: The first row asks for the likelihood of the prompt.
    rereads: Feed drafted tokens again after their commit, and drop the drafts below.
    """

    held_passes: int = 0
    measures_prompt: bool = True
    rereads: bool = False


class DraftTree:
    """The live tree of a drafter. Its root is the last known token; drafting begins with `assign`.

    `plan` returns the row to feed, `absorb` takes its result. Known tokens that are not yet in the engine's prefix
    (`take_kept`) are nodes too.

    counts: Counts of committed tokens and first choices.
    guide: Tokens that it forces are drafted and fed in the same pass.
    """

    def __init__(
        self,
        d_0: bytes,
        prompt: Sequence[int],
        committed: Sequence[int],
        calibration: Calibration,
        *,
        rules: DraftRules,
        counts: DrafterCounts | None = None,
        guide: Guide | None = None,
    ) -> None:
        self._guide = guide
        self._place: GrammarPlace | None = None
        self._output: list[int] = []
        self.branch: Branch | None = None
        self._prompt_tokens = len(prompt)
        self._calibration = calibration
        self._rules = rules
        # A fed node at the assigned depth has children one deeper.
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
        self._unsent: list[TreeNode] = []
        self._passes_unsent = 0
        self._wants_nll = rules.measures_prompt
        self.advance(0, committed)

    @property
    def digest(self) -> bytes:
        return self._tree.root.digest

    @property
    def position(self) -> int:
        return self._tree.position

    @property
    def unresolved(self) -> int:
        """Number of sent or waiting nodes that may still be committed."""
        return len(self._sent) + sum(map(self._is_possible, self._unsent))

    @property
    def unread_tokens(self) -> int:
        return sum(not self._states[node].is_fed for node in self._known)

    def tokens_fed_after(self, row: Row) -> int:
        """The longest fed path after a row, which must fit into the context."""
        deepest = max(self._by_name[name].position for name in row.nodes)
        return self._prompt_tokens + deepest + 1

    def assign(self, branch: Branch) -> Block | None:
        """Set the assignment. Returns known nodes to send."""
        self.branch = branch
        return self._regrow()

    def plan(self, sequence: int) -> Row | None:
        """The next row, if any: known tokens first, else the most probable unfed nodes."""
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
        """The chain of unfed forced nodes below each of these."""
        states = self._states
        for above in nodes:
            node: TreeNode | None = above
            while node is not None:
                children = node.children.values()
                node = next((one for one in children if states[one].is_forced and not states[one].is_fed), None)
                if node is not None:
                    yield node

    def _frontier(self) -> list[TreeNode]:
        """Unfed children of fed nodes, the most probable first, up to the width."""
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
        """Probability that the text contains a drafted node of the next row."""
        root = self._states[self._tree.root].log_path_probability
        return sum(math.exp(self._states[node].log_path_probability - root) for node in self._frontier())

    def _likely(self) -> tuple[float, float]:
        """The log path probability of the root, and the minimum difference of a drafted node's."""
        assert self.branch is not None
        least = -math.inf if self.branch.width == 1 else -math.log(self.branch.rarity)
        return self._states[self._tree.root].log_path_probability, least

    def _is_expected(self, node: TreeNode) -> bool:
        root = self._states[self._tree.root]
        return self._states[node].log_path_probability - root.log_path_probability >= math.log(EXPECTED)

    def absorb(self, row: Row, choices: Sequence[Choice]) -> Block | None:
        """Add the result of a pass. Returns nodes to send, if any.

        Nodes near the root and expected ones are sent at once, the others every few passes.
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
        if is_urgent or self._passes_unsent > self._rules.held_passes or not self._frontier():
            return self._flush()
        return None

    def advance(self, position: int, tokens: Sequence[int]) -> Block | None:
        """Commit output tokens from `position` on. Known tokens are skipped, and nothing happens after a gap.

        Returns nodes to send that were too unlikely before.
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
        if self._rules.rereads:
            self._begin_drafts_again(tokens[known:])
        self._place = None if self._guide is None else self._guide.place(self._output)
        return self._regrow()

    def _begin_drafts_again(self, committed: Sequence[int]) -> None:
        """Drop all drafts, and feed the `committed` tokens again."""
        for child in self._tree.root.children.values():
            self._drop(child)
        self._tree.clear()
        for node in self._known[len(self._known) - len(committed) :]:
            probability = self._states[node].log_path_probability
            self._dropped.append(self._forget(node))
            self._name(node, probability)

    def _note_first_choice(self, root: TreeNode, token: int) -> None:
        """Count whether the model's first choice after the root was right."""
        first = self._states[root].first
        is_right = first is not None and first.token == token
        self._counts.first_choices += first is not None
        self._counts.right_first_choices += is_right

    def take_kept(self) -> tuple[int, ...]:
        """Names of fed known nodes, in order, for the engine's prefix. The root always stays a node."""
        kept = []
        while len(self._known) > 1 and self._states[self._known[0]].is_fed:
            kept.append(self._forget(self._known.pop(0)))
        return tuple(kept)

    def take_dropped(self) -> tuple[int, ...]:
        dropped, self._dropped = tuple(self._dropped), []
        return dropped

    def _regrow(self) -> Block | None:
        """Draft candidates that have become likely enough, and forced tokens."""
        self._unsent += self._grow_forced(self._tree.root)
        waiting = [node for node, state in self._states.items() if state.candidates and self._is_live(node)]
        self._unsent += [child for node in waiting for child in self._branch_out(node)]
        return self._flush()

    def _branch_out(self, parent: TreeNode) -> list[TreeNode]:
        """Add the likely candidates of a node as children; the others wait."""
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
        """Add the tokens that a constraint forces after a node as a chain. Returns the new nodes."""
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
        """The block of all unsent nodes that may still be committed, if any."""
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
