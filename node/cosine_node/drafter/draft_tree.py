"""One request at a drafter: what is certain, what is drafted, what to feed next. Pure; the engine is elsewhere."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cosine_node.engine.base import PREFIX, Choice, Row
from cosine_p2p.speculation.calibration import Calibration
from cosine_protocol.digests import extend_digest
from cosine_protocol.nodes import BASE, MAX_BLOCK_NODES, Node

URGENT_DEPTH: Final = 3
MIN_CONFIDENCE: Final = 1e-6
MIN_LOG_REACH: Final = math.log(0.01)
MAX_CANDIDATES: Final = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token the model gave after a node, with its own estimate before calibration."""

    token: int
    claim: float
    is_first: bool


@dataclass(slots=True)
class DraftNode:
    """A token of the tree. `reach` is the log probability of its path; `position` is its output position."""

    name: int
    parent: int
    token: int
    position: int
    digest: bytes
    reach: float
    confidence: float = 1.0
    claim: float | None = None
    """The model's own estimate before calibration; None for a token nobody claimed."""
    is_first: bool = False
    is_fed: bool = False
    candidates: tuple[Candidate, ...] = ()
    """What the model said after this token and was too unlikely to draft so far."""
    children: dict[int, int] = field(default_factory=dict)

    def take(self, candidate: Candidate, confidence: float) -> None:
        """Note what the model said of this token."""
        self.claim, self.is_first, self.confidence = candidate.claim, candidate.is_first, confidence


@dataclass(frozen=True, slots=True)
class Branch:
    """Where to draft: below the prefix `base` + `guess`, `depth` tokens, `width` nodes a pass."""

    base: bytes
    guess: tuple[int, ...]
    depth: int
    width: int
    window: int


@dataclass(frozen=True, slots=True)
class Grown:
    """New nodes of one pass: a block below `base`, with what connects them."""

    base: bytes
    position: int
    nodes: tuple[Node, ...]


class DraftTree:
    """The tree below the committed tokens. `tip` is the node of the last certain token.

    Nothing is drafted before a branch is assigned. The trunk (prompt and committed tokens) consists of nodes that
    are certain; the fed part of it moves into the engine's prefix, see `take_kept`. `plan` says what to feed,
    `absorb` takes the result. Deep nodes are held back for up to `held_passes` passes.
    """

    def __init__(
        self,
        d_0: bytes,
        prompt: Sequence[int],
        committed: Sequence[int],
        calibration: Calibration,
        *,
        held_passes: int = 0,
    ) -> None:
        self.position = 0
        self._calibration = calibration
        self.branch: Branch | None = None
        self._nodes: dict[int, DraftNode] = {}
        self._next_name = 0
        self._trunk: list[int] = []
        self._dropped: list[int] = []
        self._held_passes = held_passes
        self._unsent: list[DraftNode] = []
        self._passes_unsent = 0
        self._is_new = True
        self._prompt_tokens = len(prompt)
        self._sent: set[int] = set()
        for token in prompt:
            self._push(token, -1, d_0)
        self.advance(0, committed)

    @property
    def tip(self) -> DraftNode:
        return self._nodes[self._trunk[-1]]

    def tokens_fed_after(self, row: Row) -> int:
        """How long the longest fed path may be once a row is fed: what must fit in the context."""
        deepest = max(self._nodes[name].position for name in row.nodes)
        return self._prompt_tokens + deepest + 1

    @property
    def unresolved(self) -> int:
        """Nodes sent, or about to be, and still possible."""
        return len(self._sent) + sum(map(self._is_possible, self._unsent))

    def assign(self, branch: Branch) -> Grown | None:
        """Draft there from now on; a guess becomes a branch of its own where its base is known.

        Returns nodes known already and worth sending now.
        """
        self.branch = branch
        base = next((n for n in self._nodes.values() if n.digest == branch.base and self._descends(n)), None)
        if base is not None:
            self._follow_guess(base, branch.guess)
        return self._regrow()

    def _follow_guess(self, node: DraftNode, guess: Sequence[int]) -> None:
        """Take a guess for certain, however unlikely it is to this model, so that it is drafted below first.

        What the model itself thinks of it stays its confidence.
        """
        for token in guess:
            child = node.children.get(token)
            if child is None:
                node = self._add(node, token, node.reach, MIN_CONFIDENCE)
            else:
                self._raise(self._nodes[child], node.reach - self._nodes[child].reach)
                node = self._nodes[child]

    def _raise(self, top: DraftNode, log_factor: float) -> None:
        pending = [top]
        while pending:
            node = pending.pop()
            node.reach += log_factor
            pending.extend(self._nodes[name] for name in node.children.values())

    def plan(self, sequence: int) -> Row | None:
        """The next row to feed: the unfed trunk, else the most probable unfed nodes. None if there is nothing."""
        unfed = [name for name in self._trunk if not self._nodes[name].is_fed]
        names = unfed or self._frontier()
        if not names:
            return None
        is_chain = self.branch is not None and self.branch.width == 1
        return Row(
            sequence,
            tuple(self._nodes[name].token for name in names),
            tuple(names),
            tuple(self._nodes[name].parent for name in names),
            scored_from=len(names) - 1 if unfed else 0,
            candidates=1 if is_chain else MAX_CANDIDATES,
            wants_nll=self._is_new,
        )

    def absorb(self, row: Row, choices: Sequence[Choice]) -> Grown | None:
        """Take a pass's result; returns the nodes worth sending, if any."""
        self._is_new = False
        for name in row.nodes:
            if name in self._nodes:
                self._nodes[name].is_fed = True
        grown = []
        for name, choice in zip(row.nodes[row.scored_from :], choices, strict=True):
            parent = self._nodes.get(name)
            if parent is not None and self._descends(parent):
                parent.candidates = tuple(
                    Candidate(token, claim, rank == 0) for rank, (token, claim) in enumerate(choice.candidates)
                )
                grown.extend(self._branch_out(parent))
        return self._hold(grown)

    def _hold(self, grown: list[DraftNode]) -> Grown | None:
        """Send nodes near the tip at once, since a pass may wait for them; deeper ones every few passes."""
        self._unsent += grown
        self._passes_unsent += 1
        is_urgent = any(node.position - self.tip.position <= URGENT_DEPTH for node in grown)
        if is_urgent or self._passes_unsent > self._held_passes or not self._frontier():
            return self._flush()
        return None

    def _flush(self) -> Grown | None:
        self._passes_unsent = 0
        unsent = [node for node in self._unsent if self._is_possible(node)]
        self._unsent = []
        return self._block(unsent) if unsent else None

    def advance(self, position: int, tokens: Sequence[int]) -> Grown | None:
        """Commit output tokens from `position` on; those known already are skipped, a gap is ignored.

        Returns nodes that were too unlikely before and are worth sending now.
        """
        known = self.position - position
        if known < 0:
            return None
        for token in tokens[known:]:
            tip = self.tip
            self._learn(tip, token)
            child = tip.children.get(token)
            node = self._nodes[child] if child is not None else self._add(tip, token, tip.reach, 1.0)
            for other in [name for name in tip.children.values() if name != node.name]:
                self._drop(other)
            tip.children = {token: node.name}
            self._trunk.append(node.name)
            self._sent.discard(node.name)
            self.position += 1
        return self._regrow()

    def take_kept(self) -> tuple[int, ...]:
        """Trunk nodes, in order, that the engine may move into its prefix now; the tip always stays a node."""
        kept = []
        while len(self._trunk) > 1 and self._nodes[self._trunk[0]].is_fed:
            name = self._trunk.pop(0)
            kept.append(name)
            for child in self._nodes.pop(name).children.values():
                self._nodes[child].parent = PREFIX
        return tuple(kept)

    def take_dropped(self) -> tuple[int, ...]:
        """Names dropped since the last call, for the engine to prune."""
        dropped, self._dropped = tuple(self._dropped), []
        return dropped

    def _learn(self, tip: DraftNode, token: int) -> None:
        for child_token, name in tip.children.items():
            child = self._nodes[name]
            if child.claim is not None:
                self._calibration.observe(child.claim, is_first=child.is_first, hit=child_token == token)

    def _push(self, token: int, position: int, digest: bytes) -> None:
        parent = self._trunk[-1] if self._trunk else PREFIX
        node = DraftNode(self._next_name, parent, token, position, digest, 0.0)
        self._next_name += 1
        self._nodes[node.name] = node
        if parent != PREFIX:
            self._nodes[parent].children[token] = node.name
        self._trunk.append(node.name)

    def _add(self, parent: DraftNode, token: int, reach: float, confidence: float) -> DraftNode:
        node = DraftNode(
            self._next_name,
            parent.name,
            token,
            parent.position + 1,
            extend_digest(parent.digest, token),
            reach,
            confidence,
        )
        self._next_name += 1
        self._nodes[node.name] = node
        parent.children[token] = node.name
        return node

    def _descends(self, node: DraftNode) -> bool:
        """Whether a node is the tip or below it; all of the prompt shares the position of its last token."""
        return node.position > self.tip.position or node.name == self.tip.name

    def _is_possible(self, node: DraftNode) -> bool:
        """Whether a node is neither committed nor dropped."""
        return node.position > self.tip.position and self._nodes.get(node.name) is node

    def _frontier(self) -> list[int]:
        branch = self.branch
        if branch is None or self.unresolved >= branch.window:
            return []
        deepest = self.position + branch.depth
        open_nodes = [
            node
            for node in self._nodes.values()
            if not node.is_fed
            and node.position > self.tip.position
            and node.position < deepest
            and self._is_parent_fed(node)
            and (branch.width == 1 or self._is_likely(node.reach))
        ]
        open_nodes.sort(key=lambda node: (-node.reach, node.name))
        return [node.name for node in open_nodes[: branch.width]]

    def _is_likely(self, reach: float) -> bool:
        return reach - self.tip.reach >= MIN_LOG_REACH

    def _is_parent_fed(self, node: DraftNode) -> bool:
        return node.parent == PREFIX or self._nodes[node.parent].is_fed

    def _regrow(self) -> Grown | None:
        below = [node for node in self._nodes.values() if node.candidates and self._descends(node)]
        self._unsent += [child for node in below for child in self._branch_out(node)]
        return self._flush()

    def _branch_out(self, parent: DraftNode) -> list[DraftNode]:
        """Give a node those of its candidates as children that are likely enough by now; the rest wait."""
        if self.branch is None:
            return []
        grown, waiting = [], []
        is_only = self.branch.width == 1
        for candidate in parent.candidates[: 1 if is_only else None]:
            confidence = self._calibration(candidate.claim, is_first=candidate.is_first)
            reach = parent.reach + math.log(max(confidence, MIN_CONFIDENCE))
            known = parent.children.get(candidate.token)
            if known is not None:
                self._nodes[known].take(candidate, confidence)
            elif is_only or self._is_likely(reach):
                node = self._add(parent, candidate.token, reach, confidence)
                node.take(candidate, confidence)
                grown.append(node)
            else:
                waiting.append(candidate)
        parent.candidates = tuple(waiting)
        return grown

    def _block(self, grown: list[DraftNode]) -> Grown:
        """The grown nodes, as many as a block holds, below the deepest prefix they share."""
        paths = [self._path_below_tip(node) for node in grown]
        shared = 0
        shortest = min(map(len, paths)) - 1
        while shared < shortest and len({path[shared].name for path in paths}) == 1:
            shared += 1
        ordered = list({node.name: node for path in paths for node in path[shared:]}.values())[:MAX_BLOCK_NODES]
        index = {node.name: number for number, node in enumerate(ordered)}
        base = paths[0][shared - 1] if shared else self.tip
        self._sent.update(node.name for node in grown if node.name in index)
        nodes = tuple(Node(index.get(node.parent, BASE), node.token, node.confidence) for node in ordered)
        return Grown(base.digest, base.position + 1, nodes)

    def _path_below_tip(self, node: DraftNode) -> list[DraftNode]:
        path = [node]
        while path[-1].parent != self.tip.name:
            path.append(self._nodes[path[-1].parent])
        return path[::-1]

    def _drop(self, name: int) -> None:
        pending = [name]
        while pending:
            node = self._nodes.pop(pending.pop())
            self._sent.discard(node.name)
            self._dropped.append(node.name)
            pending.extend(node.children.values())
