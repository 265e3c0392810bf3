"""Synchronous rounds, which published designs share: ask drafters, collect drafts, verify them in one pass, learn.

A drafter that has not answered within `PATIENCE_FACTOR` times its expected time is not waited for, and one that
gave nothing at all is not asked again for a while. All drafters follow every commit, so any of them can be asked
at once; one that is not asked is told to stay with the first token.
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
from cosine_protocol.limits import MAX_COMMIT_TOKENS
from cosine_protocol.messages import Pacing, PassStats

# A drafter is waited for this many times as long as expected, and no less than links stall; one that kept everyone
# waiting is then left out for `BACKOFF_ROUNDS` rounds.
PATIENCE_FACTOR: Final = 3.0
MIN_PATIENCE_S: Final = 0.25
BACKOFF_ROUNDS: Final = 8
# What is measured counts by its last values: a drafter's last 20 tokens, its and the verifier's last 5 times. Until
# then a new drafter counts as good; a machine that stalls once looks at most `MAX_SLOWNESS` times as slow as usual.
FIRST_ACCEPTANCE: Final = 0.6
FIRST_ACCEPTANCE_TOKENS: Final = 8
ACCEPTANCE_WEIGHT: Final = 0.05
PACE_WEIGHT: Final = 0.2
MAX_SLOWNESS: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedKind(StrategyKind):
    """A rival that asks verifiers for each of their passes, by a `Tree` with the nodes to verify.

    Its verifiers must be such as wait for that (`cosine_lab.simulation.verifiers.SteppedVerifier`).
    """

    @property
    def pacing(self) -> Pacing:
        return Pacing.PLAIN


@dataclass(slots=True)
class Acceptance:
    """The acceptance rate of drafted tokens, each judged only where all before it were.

    `FIRST_ACCEPTANCE` counts for `FIRST_ACCEPTANCE_TOKENS` tokens; of late tokens about the last 20 count.
    """

    rate: float = FIRST_ACCEPTANCE
    tokens: int = FIRST_ACCEPTANCE_TOKENS

    @property
    def judged(self) -> int:
        """Tokens taken in so far."""
        return self.tokens - FIRST_ACCEPTANCE_TOKENS

    def learn(self, *, accepted: int, drafted: int) -> None:
        """Take in a chain: `accepted` hits and, unless all of `drafted` hit, one miss."""
        for index in range(min(accepted + 1, drafted)):
            self.tokens += 1
            weight = max(ACCEPTANCE_WEIGHT, 1.0 / self.tokens)
            self.rate = moving_average(self.rate, index < accepted, weight=weight)


@dataclass(slots=True)
class AskedDrafter:
    """A drafter asked at `at_s`; its first draft since then came at `first_s`, its last at `last_s`."""

    at_s: float
    first_s: float | None = None
    last_s: float | None = None


class Rounds(ABC):
    """The state of a request in rounds. A strategy says whom to ask, when to verify what, and what to learn."""

    def __init__(self, root: bytes, position: int = 0, *, width_nodes: int = 1) -> None:
        self._width_nodes = width_nodes
        self._tree = LiveTree(root, position)
        self._drafters: dict[int, DrafterStarted] = {}
        self._verifier = VerifierOpened(0.0, 0.0)
        self._verify_s = 0.0
        """Measured time from asking for a pass to its result, without the round trip."""
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
        """Open a round, by `_ask`; the tree stands at what is committed. Without `_ask` the pass is a plain one."""

    @abstractmethod
    def _go_on(self, now_s: float) -> list[Action] | None:
        """Decide while a drafter is awaited; None when all wanted drafts are there."""

    @abstractmethod
    def _chosen(self) -> list[TreeNode]:
        """The nodes to verify, parents first."""

    @abstractmethod
    def _learn(self, tokens: tuple[int, ...]) -> None:
        """Judge the drafts by committed tokens; the tree still stands where they begin."""

    def _join(self, drafter: DrafterStarted) -> None:
        """A drafter can be asked from now on."""
        self._drafters[drafter.author] = drafter
        self._backing_off.pop(drafter.author, None)

    def _leave(self, author: int) -> None:
        """A drafter is gone."""
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
        """The drafters worth asking."""
        return {author: d for author, d in self._drafters.items() if not self._backing_off.get(author)}

    def _awaited(self) -> list[int]:
        """Those asked in this round who can still answer."""
        return [author for author in self._asked if author in self._drafters]

    def _pace(self, author: int) -> float:
        """Seconds that a drafter takes for a token, as measured."""
        return self._pace_s.get(author, self._drafters[author].token_s)

    def _note_pace(self, author: int, took_s: float, *, tokens: int) -> None:
        """Learn how fast a drafter is now from the time that `tokens` of its passes and the round trip took."""
        if drafter := self._drafters.get(author):
            token_s = (took_s - drafter.rtt_s) / max(1, tokens)
            token_s = min(max(token_s, drafter.token_s), MAX_SLOWNESS * drafter.token_s)
            self._pace_s[author] = moving_average(self._pace(author), token_s, weight=PACE_WEIGHT)

    def _ask(
        self, assigns: Sequence[SendAssign], *, expected_s: float, now_s: float, due_s: float = math.inf
    ) -> list[Action]:
        """Ask drafters that should answer in `expected_s`; wakes when patience ends, or at `due_s` before."""
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
        """Let a drafter follow; tell it what was committed while it read the prompt."""
        self._join(drafter)
        if not self._latest:
            return []
        position = self._tree.position - len(self._latest)
        return [SendAdvance(drafter.author, position, tuple(self._latest))]

    def _take(self, event: FragmentReceived, now_s: float) -> None:
        """Keep every draft, asked for or not: no drafter sends a node twice."""
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
        """Learn how long a pass takes from asking for it to its result, without the round trip."""
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
        """Patience is over: verify what is there."""
        if self._is_drafting:
            self._backing_off |= {author: BACKOFF_ROUNDS for author in self._awaited() if self._is_silent(author)}
        return self._verify(now_s)

    def _is_silent(self, author: int) -> bool:
        """Return whether a drafter that was asked kept everyone waiting."""
        return not self._has_drafted(author)

    def _has_drafted(self, author: int) -> bool:
        """Return whether anything of a drafter follows what is committed."""
        return first_choice(self._tree.root, author) is not None


def verify(tree: LiveTree, nodes: Sequence[TreeNode], authors: Collection[int]) -> SendTree:
    """A pass over nodes of the tree, parents first; of these authors the most confident is credited."""

    def credit(node: TreeNode) -> tuple[int, float]:
        author = node.most_confident_author(authors)
        return author, node.draft_probabilities[author]

    return SendTree(block_below(tree.root, nodes, credit))


def chain_of(tree: LiveTree, author: int) -> list[TreeNode]:
    """The path below the root along an author's first choices."""
    chain: list[TreeNode] = []
    node = tree.root
    while first := first_choice(node, author):
        chain.append(first)
        node = first
    return chain


def merged(tree: LiveTree, authors: Collection[int], *, most: int) -> list[TreeNode]:
    """Everything these authors drafted below the root, merged by prefix, parents first: the `most` likeliest.

    A node counts with the highest draft probability that any of them gives it, times that of its path.
    """
    found = tree.path_probabilities(
        lambda node: max((p for author, p in node.draft_probabilities.items() if author in authors), default=None)
    )
    return sorted(found, key=lambda node: (-found[node], node.position))[:most]


DRAFT_LENGTHS: Final = tuple(range(1, 17))
"""Longer drafts hardly gain where a round waits for all of them."""


def expected_tokens(*, acceptance: float, draft_tokens: int) -> float:
    """Tokens committed by one round: (1 - a^(g+1)) / (1 - a) (Leviathan et al. 2023, equation 1)."""
    if acceptance >= 1.0:
        return draft_tokens + 1.0
    return float((1.0 - acceptance ** (draft_tokens + 1)) / (1.0 - acceptance))


def best_draft_tokens(
    *,
    acceptance: float,
    draft_token_s: float,
    round_trips_s: float,
    verify_s: float,
    lengths: Sequence[int] = DRAFT_LENGTHS,
) -> int:
    """The g that maximises committed tokens per second when a round costs g drafts, the round trips and a pass."""
    return max(
        lengths,
        key=lambda g: (
            expected_tokens(acceptance=acceptance, draft_tokens=g) / (g * draft_token_s + round_trips_s + verify_s)
        ),
    )
