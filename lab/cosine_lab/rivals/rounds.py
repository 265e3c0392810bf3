"""Synchronous rounds: request drafts, collect them, verify them in one pass, learn.

A round does not wait for a drafter longer than `PATIENCE_FACTOR` times its expected time, and skips one without any
draft for some rounds. All drafters follow every commit; one that is not used is assigned the first token only.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_lab.rivals.paths import first_choice
from cosine_p2p.strategy.base import (
    Action,
    Committed,
    DrafterLost,
    DraftersAllowed,
    DrafterStarted,
    Event,
    FragmentReceived,
    SendAdvance,
    SendAssign,
    SendTree,
    StrategyKind,
    Tick,
    VerifierOpened,
    WakeAt,
)
from cosine_p2p.strategy.moving_average import moving_average
from cosine_p2p.strategy.tree import LiveTree, TreeNode, block_below
from cosine_protocol.draft import MAX_COMMIT_TOKENS
from cosine_protocol.verify import Pacing, PassStats

# Patience for a drafter: this many times the expected time, and at least as long as links stall. A drafter that
# exceeds it is skipped for `BACKOFF_ROUNDS` rounds.
PATIENCE_FACTOR: Final = 3.0
MIN_PATIENCE_S: Final = 0.25
BACKOFF_ROUNDS: Final = 8
# Moving averages cover about 20 tokens of a drafter and 5 times of a drafter or verifier. A new drafter is assumed
# to be good; a stall counts as at most `MAX_SLOWNESS` times the usual time.
FIRST_ACCEPTANCE: Final = 0.6
FIRST_ACCEPTANCE_TOKENS: Final = 8
ACCEPTANCE_WEIGHT: Final = 0.05
PACE_WEIGHT: Final = 0.2
MAX_SLOWNESS: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedKind(StrategyKind):
    """A rival that requests each pass of a verifier, by a `Tree` with the nodes to verify.

    Requires verifiers that wait for it (`cosine_lab.simulation.verifiers.SteppedVerifier`).
    """

    @property
    def pacing(self) -> Pacing:
        return Pacing.PLAIN


@dataclass(slots=True)
class RoundAcceptance:
    """The acceptance rate of drafted tokens, as if `FIRST_ACCEPTANCE_TOKENS` had had `FIRST_ACCEPTANCE`."""

    rate: float = FIRST_ACCEPTANCE
    tokens: int = FIRST_ACCEPTANCE_TOKENS

    @property
    def judged(self) -> int:
        """The number of tokens learned from."""
        return self.tokens - FIRST_ACCEPTANCE_TOKENS

    def learn(self, *, accepted: int, drafted: int) -> None:
        """Learn from a chain: `accepted` hits and, unless all of `drafted` hit, one miss."""
        for index in range(min(accepted + 1, drafted)):
            self.tokens += 1
            weight = max(ACCEPTANCE_WEIGHT, 1.0 / self.tokens)
            self.rate = moving_average(self.rate, index < accepted, weight=weight)


@dataclass(slots=True)
class AskedDrafter:
    """A drafter assigned at `at_s`; its first draft since then arrived at `first_s`, its last at `last_s`."""

    at_s: float
    first_s: float | None = None
    last_s: float | None = None


class Rounds(ABC):
    """The state of a request in rounds. Subclasses choose the drafters and the nodes to verify, and learn."""

    def __init__(self, root: bytes, position: int = 0, *, width_nodes: int = 1) -> None:
        self._width_nodes = width_nodes
        self._tree = LiveTree(root, position)
        self._drafters: dict[int, DrafterStarted] = {}
        self._verifier = VerifierOpened(0.0, 0.0)
        self._verify_s = 0.0
        """Measured time from requesting a pass to its result, without the round trip."""
        self._asked: dict[int, AskedDrafter] = {}
        self._is_drafting = False
        self._deadline_s = 0.0
        self._verify_at_s: float | None = None
        self._busy: set[int] = set()
        self._backing_off: dict[int, int] = {}
        self._pace_s: dict[int, float] = {}
        self._latest: deque[int] = deque(maxlen=MAX_COMMIT_TOKENS)

    @abstractmethod
    def _begin(self, now_s: float) -> list[Action]:
        """Start a round, by `_ask`. Without `_ask` the pass has no drafts."""

    @abstractmethod
    def _go_on(self, now_s: float) -> list[Action] | None:
        """Return actions while waiting for drafters, or None once all wanted drafts have arrived."""

    @abstractmethod
    def _chosen(self) -> list[TreeNode]:
        """Return the nodes to verify, parents first."""

    @abstractmethod
    def _learn(self, tokens: tuple[int, ...]) -> None:
        """Learn from committed tokens, before the tree advances."""

    def _join(self, drafter: DrafterStarted) -> None:
        """Add a drafter."""
        self._drafters[drafter.author] = drafter
        self._backing_off.pop(drafter.author, None)

    def _leave(self, author: int) -> None:
        """Remove a drafter."""
        self._drafters.pop(author, None)
        self._busy.discard(author)

    def on(self, event: Event, now_s: float) -> list[Action]:
        match event:
            case VerifierOpened():
                self._verifier, self._verify_s = event, event.pass_s
                self._is_drafting, self._verify_at_s = False, None
                return []
            case DrafterStarted():
                return self._start(event)
            case DrafterLost(author):
                self._leave(author)
                return self._proceed(now_s)
            case FragmentReceived():
                self._take(event, now_s)
                return self._proceed(now_s)
            case Committed():
                return self._next_round(event, now_s)
            case Tick():
                return self._give_up(now_s) if now_s >= self._deadline_s else self._proceed(now_s)
            case DraftersAllowed():
                return []

    def _present(self) -> dict[int, DrafterStarted]:
        """Return the drafters that are not skipped."""
        return {author: d for author, d in self._drafters.items() if not self._backing_off.get(author)}

    def _awaited(self) -> list[int]:
        """Return the assigned drafters of this round that are still connected."""
        return [author for author in self._asked if author in self._drafters]

    def _pace(self, author: int) -> float:
        """Return the measured seconds of a drafter per token."""
        return self._pace_s.get(author, self._drafters[author].token_s)

    def _note_pace(self, author: int, took_s: float, *, tokens: int) -> None:
        """Update a drafter's speed by the time of `tokens` passes and a round trip."""
        if drafter := self._drafters.get(author):
            token_s = (took_s - drafter.rtt_s) / max(1, tokens)
            token_s = min(max(token_s, drafter.token_s), MAX_SLOWNESS * drafter.token_s)
            self._pace_s[author] = moving_average(self._pace(author), token_s, weight=PACE_WEIGHT)

    def _ask(
        self, assigns: Sequence[SendAssign], *, expected_s: float, now_s: float, due_s: float = math.inf
    ) -> list[Action]:
        """Send assignments expected to take `expected_s`; wake when patience ends, or earlier at `due_s`."""
        for assign in assigns:
            self._asked.setdefault(assign.author, AskedDrafter(now_s))
        idle = self._busy - self._asked.keys()
        self._busy = set(self._awaited())
        self._deadline_s = now_s + max(MIN_PATIENCE_S, PATIENCE_FACTOR * expected_s)
        parked = [
            self._assign(author, width=self._width_nodes, depth=1, window=1, why="not asked now")
            for author in sorted(idle)
        ]
        return [*parked, *assigns, WakeAt(min(due_s, self._deadline_s))]

    def _assign(self, author: int, *, depth: int, width: int, window: int, why: str) -> SendAssign:
        return SendAssign(author, self._tree.root.digest, self._tree.position, depth, width, window, why)

    def _start(self, drafter: DrafterStarted) -> list[Action]:
        """Add a drafter and send it the tokens committed while it read the prompt."""
        self._join(drafter)
        if not self._latest:
            return []
        position = self._tree.position - len(self._latest)
        return [SendAdvance(drafter.author, position, tuple(self._latest))]

    def _take(self, event: FragmentReceived, now_s: float) -> None:
        """Attach a draft, also an unrequested one: no drafter sends a node twice."""
        draft = event.draft
        touched = self._tree.attach(draft.base, draft.position, draft.nodes, [event.author] * len(draft.nodes))
        if touched and event.author in self._asked:
            asked = self._asked[event.author]
            asked.first_s = now_s if asked.first_s is None else asked.first_s
            asked.last_s = now_s

    def _next_round(self, event: Committed, now_s: float) -> list[Action]:
        if self._verify_at_s is not None:
            self._note_verified(event.stats, now_s - self._verify_at_s - self._verifier.rtt_s)
            self._learn(event.tokens)
            self._verify_at_s = None
        self._tree.advance(event.tokens)
        self._latest.extend(event.tokens)
        self._asked = {}
        self._is_drafting = True
        advances: list[Action] = [
            SendAdvance(author, event.position, event.tokens) for author in self._drafters if event.tokens
        ]
        begun = self._begin(now_s)
        self._backing_off = {author: rounds - 1 for author, rounds in self._backing_off.items() if rounds > 1}
        return [*advances, *begun, *self._proceed(now_s)]

    def _note_verified(self, stats: PassStats, took_s: float) -> None:
        """Update the time from requesting a pass to its result, without the round trip."""
        seconds = min(max(stats.pass_us / 1e6, took_s), MAX_SLOWNESS * self._verifier.pass_s)
        self._verify_s = moving_average(self._verify_s, seconds, weight=PACE_WEIGHT)

    def _proceed(self, now_s: float) -> list[Action]:
        if not self._is_drafting:
            return []
        actions = self._go_on(now_s) if self._awaited() else None
        return self._verify(now_s) if actions is None else actions

    def _verify(self, now_s: float) -> list[Action]:
        if not self._is_drafting:
            return []
        self._is_drafting = False
        self._verify_at_s = now_s
        return [verify(self._tree, self._chosen(), self._asked.keys())]

    def _give_up(self, now_s: float) -> list[Action]:
        """Verify the drafts that have arrived, as patience is over."""
        if self._is_drafting:
            silent = [author for author in self._awaited() if not self._has_drafted(author)]
            self._backing_off |= dict.fromkeys(silent, BACKOFF_ROUNDS)
        return self._verify(now_s)

    def _has_drafted(self, author: int) -> bool:
        """Return True if a draft of an author follows the committed tokens."""
        return first_choice(self._tree.root, author) is not None


def verify(tree: LiveTree, nodes: Sequence[TreeNode], authors: Collection[int]) -> SendTree:
    """Return a pass over nodes of the tree, parents first, each credited to the most confident of these authors."""

    def credit(node: TreeNode) -> tuple[int, float]:
        author = node.most_confident_author(authors)
        return author, node.draft_probabilities[author]

    return SendTree(block_below(tree.root, nodes, credit))


def chain_of(tree: LiveTree, author: int) -> list[TreeNode]:
    """Return the path below the root along an author's first choices."""
    chain: list[TreeNode] = []
    node = tree.root
    while first := first_choice(node, author):
        chain.append(first)
        node = first
    return chain


def merged(tree: LiveTree, authors: Collection[int], *, most: int) -> list[TreeNode]:
    """Return the `most` likeliest nodes that these authors drafted below the root, parents first.

    The probability of a node is the highest that any of them gives it, times that of its path.
    """
    found = tree.path_probabilities(
        lambda node: max((p for author, p in node.draft_probabilities.items() if author in authors), default=None)
    )
    return sorted(found, key=lambda node: (-found[node], node.position))[:most]


DRAFT_LENGTHS: Final = tuple(range(1, 17))
"""Draft lengths to choose from: longer ones hardly gain where a round waits for them."""


def expected_tokens(*, acceptance: float, draft_tokens: int) -> float:
    """Return the expected tokens of a round: (1 - a^(g+1)) / (1 - a) (Leviathan et al. 2023, equation 1)."""
    if acceptance >= 1.0:
        return draft_tokens + 1.0
    return float((1.0 - acceptance ** (draft_tokens + 1)) / (1.0 - acceptance))


def best_draft_tokens(*, acceptance: float, draft_token_s: float, round_trips_s: float, verify_s: float) -> int:
    """Return the g with most tokens per second, where a round takes g drafts, the round trips and a pass."""
    return max(
        DRAFT_LENGTHS,
        key=lambda g: (
            expected_tokens(acceptance=acceptance, draft_tokens=g) / (g * draft_token_s + round_trips_s + verify_s)
        ),
    )
