"""The strategy `cosine`: drafts of several drafters form one live tree, and the verifier never waits.

A `LiveTree` has all drafts below the committed prefix; a `Fusion` calibrates authors and gives each node one
probability, a `HedgeRouter` has a weight for each author, and a `Forwarder` records the nodes sent to the
verifier. A fragment is attached to the tree, and changed nodes are sent if their path is likely enough
(`TreeCuts`). On a commit fusion and router learn before the tree advances; then drafters are chosen again
(`_reroute`), and nodes that have become likely are sent. Nothing is sent before a verifier has opened, nor while
no drafter is allowed.

A drafter that is `DRAFTING` may be `RELEASED`, `RECALLED`, and `RESUMED` once it has started, until it drafts.

A drafter without a new draft for `SILENT_TOKENS` committed tokens backs off, each time for twice as long, and the
router forgets it meanwhile. The router picks the allowed number of the others; those of little weight are
released, those picked are recalled if there is room. A resumed drafter stays until it has drafted something new,
and the best that has drafted is not released for one that has not. Drafters may start, and late drafts may arrive,
in any state.
"""

import math
from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass
from enum import Enum, auto
from itertools import zip_longest
from typing import Final

from cosine_p2p.strategy.base import (
    Action,
    Committed,
    DrafterLost,
    DraftersAllowed,
    DrafterStarted,
    Event,
    FragmentReceived,
    RecallDrafter,
    ReleaseDrafter,
    SendAdvance,
    SendAssign,
    SendTree,
    VerifierOpened,
)
from cosine_p2p.strategy.fusion import BINS, FusedView, Fusion
from cosine_p2p.strategy.router import HedgeRouter
from cosine_p2p.strategy.tree import MAX_LIVE_NODES, LiveTree, TreeNode, block_below, connected
from cosine_protocol.draft import MAX_TREE_DEPTH, ReleaseReason
from cosine_protocol.verify import HOME_AUTHOR


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeCuts:
    """Limits of unlikely paths: drafters drop those less likely than one in `rarity` (None: their default).

    Drafts after an unexpected token arrive in time only below an unlikely path. Few such paths are used, and all
    cost bytes on the client's link; within one node they cost none.
    """

    rarity: int | None
    min_path_probability: float


CLIENT_CUTS: Final = TreeCuts(rarity=None, min_path_probability=0.005)
"""Bounds bytes on the client's link (`cosine_node.verifier.costs.MIN_PATH_PROBABILITY`)."""
VERIFIER_CUTS: Final = TreeCuts(rarity=300, min_path_probability=0.0015)
"""Tuned on the split tune of the recorded generations (decision 15): 1.02 to 1.05 times the speed of rarity 100,
and at 20 ms as fast as 1000."""
BESIDE_HOME_CUTS: Final = TreeCuts(rarity=30, min_path_probability=0.0015)
"""Over stages whose head has drafted all that is likely. Three stages of 4 ms, 60 ms, eight recorded texts: rarity
300 is 1.01 to 1.02 times as fast, and a volunteer drafts 103 nodes for a token instead of 15."""
RESEND_CHANGE: Final = 1 / BINS  # Calibration does not distinguish smaller changes of a probability.
BLOCK_NODES: Final = 32  # The nodes of most passes fit in one message. 16 to 64 change only the number of messages.


class Forwarder:
    """Records the nodes of one live tree that were sent to the verifier, with their probabilities."""

    def __init__(self, tree: LiveTree) -> None:
        self._tree = tree
        self.min_path_probability = CLIENT_CUTS.min_path_probability
        self._sent: dict[TreeNode, float] = {}

    def forget(self) -> None:
        self._sent.clear()

    def prune(self) -> None:
        self._sent = {node: known for node, known in self._sent.items() if node.digest in self._tree}

    def blocks(self, view: FusedView, touched: Iterable[TreeNode]) -> list[SendTree]:
        """Return blocks of the nodes that are new to the verifier or have changed, with connecting nodes."""
        wanted = []
        for node in touched:
            known = self._sent.get(node)
            is_news = known is None or abs(known - view.conditional(node)) >= RESEND_CHANGE
            if is_news and view.path_probability(node) >= self.min_path_probability:
                wanted.append(node)
        sends = []
        for start in range(0, len(wanted), BLOCK_NODES):
            part = wanted[start : start + BLOCK_NODES]
            base, nodes = connected(self._tree, part, is_known=self._sent.__contains__)
            self._sent |= {node: view.conditional(node) for node in nodes}
            block = block_below(base, nodes, lambda node: (view.best_author(node), self._sent[node]))
            sends.append(SendTree(block))
        return sends


# A useless drafter costs passes and traffic, one released too soon its drafts and, when recalled, a prefill. Four
# tokens would often be chance, sixteen are most of a sentence (decision 2). Recalls by these rules make `cosine`
# 1.26 to 1.34 times as fast at temperature 0 (decision 7).
JUDGED_TOKENS: Final = 8  # Committed tokens for which a drafter had drafted, before its weight counts against it.
SILENT_TOKENS: Final = JUDGED_TOKENS  # Consecutive committed tokens for which only others had drafted.
FIRST_BACKOFF_TOKENS: Final = 2 * SILENT_TOKENS  # Each further backoff is twice as long.
MIN_WEIGHT: Final = 0.03
"""A judged drafter of less weight is released. A factor of two is 0.7 nats, less than one bad token costs."""


class DrafterState(Enum):
    """The state of a drafter that is not lost."""

    DRAFTING = auto()
    RESUMED = auto()  # Drafting after a recall, until it has drafted something new.
    RELEASED = auto()
    BACKING_OFF = auto()  # Released for a while because it drafted nothing new.
    RECALLED = auto()  # Asked to follow again and not started yet.


@dataclass(slots=True)
class Drafter:
    """One drafter of a request.

    `judged_tokens` counts committed tokens for which it had drafted, `silent_tokens` consecutive ones for which
    only others had. `backoff_tokens` is the length of its last backoff, 0 since it last drafted; the backoff ends
    at `backs_off_until` committed tokens.
    """

    facts: DrafterStarted
    state: DrafterState = DrafterState.DRAFTING
    depth_tokens: int = 0
    judged_tokens: int = 0
    silent_tokens: int = 0
    backoff_tokens: int = 0
    backs_off_until: int = 0

    @property
    def is_active(self) -> bool:
        return self.state in (DrafterState.DRAFTING, DrafterState.RESUMED)

    @property
    def is_judged(self) -> bool:
        return self.judged_tokens >= JUDGED_TOKENS

    def start(self, facts: DrafterStarted) -> None:
        has_resumed = self.state in (DrafterState.RECALLED, DrafterState.RESUMED)
        self.state = DrafterState.RESUMED if has_resumed else DrafterState.DRAFTING
        self.facts, self.silent_tokens = facts, 0

    def back_off(self, seen_tokens: int) -> None:
        """Release the drafter for twice as long as the last time."""
        self.state = DrafterState.BACKING_OFF
        self.backoff_tokens = 2 * self.backoff_tokens or FIRST_BACKOFF_TOKENS
        self.backs_off_until = seen_tokens + self.backoff_tokens

    def note_committed(self, *, has_drafted: bool) -> None:
        """Note a committed token for which this drafter, or only others, had drafted."""
        if has_drafted:
            # Drafts sent before a release may come after it.
            if self.state is DrafterState.RESUMED:
                self.state = DrafterState.DRAFTING
            self.judged_tokens += 1
            self.silent_tokens = self.backoff_tokens = 0
        elif self.is_active:
            self.silent_tokens += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CosineOptions:
    """Maximum number of drafters, and how each drafts: depth, nodes per pass, and maximum of undecided nodes.

    Tuned on the split tune of the recorded generations, 20 ms away; distant drafters draft deeper, with a larger
    window (`depth_for`).
    """

    drafters: int = 3
    depth_tokens: int = 24
    width_nodes: int = 8
    window_nodes: int = 256


AHEAD_PASSES: Final = 2  # A draft is sent during one pass and used by the next, whose results are both unknown.
DEEPEST: Final = MAX_TREE_DEPTH - 1  # Nodes expanded at this depth still have children within the tree's limit.


def depth_for(options: CosineOptions, facts: DrafterStarted, verifier: VerifierOpened) -> int:
    """Return a drafter's depth: the tokens that it drafts until the result of the pass with its drafts arrives."""
    ahead_s = facts.rtt_s + verifier.rtt_s + AHEAD_PASSES * verifier.pass_s
    if ahead_s >= DEEPEST * facts.token_s:
        return DEEPEST
    return max(options.depth_tokens, math.ceil(ahead_s / facts.token_s))


class Cosine:
    """Cooperative speculation of the drafters that best predicted the request so far."""

    def __init__(self, root: bytes, options: CosineOptions | None = None) -> None:
        self._options = options or CosineOptions()
        self._tree = LiveTree(root)
        self._fusion = Fusion()
        self._router = HedgeRouter()
        self._forwarder = Forwarder(self._tree)
        self._drafters: dict[int, Drafter] = {}
        self._limit = self._options.drafters
        self._cuts = CLIENT_CUTS
        self._verifier = VerifierOpened(pass_s=0.0, rtt_s=0.0)
        self._is_open = False
        self._has_home = False
        self._seen_tokens = 0

    def on(self, event: Event, now_s: float) -> list[Action]:
        del now_s
        match event:
            case VerifierOpened():
                return self._open(event)
            case DrafterStarted():
                return self._start(event)
            case DrafterLost(author):
                self._router.leave(author)
                self._drafters.pop(author, None)
                return self._reroute()
            case DraftersAllowed(count):
                self._limit = min(count, self._options.drafters)
                return self._reroute()
            case FragmentReceived(author, draft, digests):
                authors = [author] * len(draft.nodes)
                touched = self._tree.attach(draft.base, draft.position, draft.nodes, authors, digests)
                return self._forward(touched)
            case Committed():
                return self._commit(event)
            case _:
                return []

    def _active(self) -> list[int]:
        return sorted(author for author, drafter in self._drafters.items() if drafter.is_active)

    def _open(self, event: VerifierOpened) -> list[Action]:
        self._verifier, self._is_open = event, True
        self._choose_cuts()
        self._forwarder.forget()
        farther = [
            self._assign(author, drafter, "how deep it drafts follows from how long the verifier's news takes")
            for author, drafter in sorted(self._drafters.items())
            if drafter.is_active and drafter.depth_tokens != depth_for(self._options, drafter.facts, event)
        ]
        return [*farther, *self._forward(self._tree.walk())]

    def _assign(self, author: int, drafter: Drafter, why: str) -> SendAssign:
        options, tree = self._options, self._tree
        depth = drafter.depth_tokens = depth_for(options, drafter.facts, self._verifier)
        # The windows of all drafters together fit into the tree; a full one drops further nodes.
        window = min(MAX_LIVE_NODES // options.drafters, options.window_nodes * depth // options.depth_tokens)
        size = (depth, options.width_nodes, window)
        return SendAssign(author, tree.root.digest, tree.position, *size, why, self._cuts.rarity)

    def _forward(self, touched: Iterable[TreeNode]) -> list[Action]:
        if not self._is_open or not self._limit:
            return []
        view = self._fusion.view(self._tree, self._router.weights())
        return list(self._forwarder.blocks(view, touched))

    def _start(self, event: DrafterStarted) -> list[Action]:
        author = event.author
        self._router.join(event)
        away = f"{1e3 * event.rtt_s:.0f} ms away"
        if author in self._drafters:
            self._drafters[author].start(event)
            why = f"drafts again, {away}"
        else:
            self._drafters[author] = Drafter(event)
            likelihood = f"a token of the prompt seemed {100 * math.exp(-event.prompt_nll):.2g} % likely to it"
            why = f"asked to draft, {away}, {likelihood}"
        assign = self._assign(author, self._drafters[author], why)
        rerouted = self._reroute()
        return [assign, *rerouted] if self._drafters[author].is_active else rerouted

    def _commit(self, event: Committed) -> list[Action]:
        likelihoods = self._fusion.learn(self._tree, event.tokens)
        self._router.learn(likelihoods)
        # A drafter at the head of stages drafts all the time.
        self._has_home = self._has_home or (self._verifier.has_stages and HOME_AUTHOR in event.authors)
        for by_author, who in zip_longest(likelihoods, event.authors):
            drafted: Collection[int] = by_author or ()
            if self._has_home:
                # Only what the head's own drafter had not drafted before is new.
                drafted = {who} if who == HOME_AUTHOR or who in self._drafters else ()
            for author, drafter in self._drafters.items() if drafted else ():
                drafter.note_committed(has_drafted=author in drafted)
        self._tree.advance(event.tokens)
        self._forwarder.prune()
        self._seen_tokens += len(event.tokens)
        advances = [SendAdvance(author, event.position, event.tokens) for author in self._active()]
        assigns: list[Action] = []
        if self._choose_cuts():
            why = f"paths rarer than one in {self._cuts.rarity or 'its usual number'} are not wanted now"
            assigns = [self._assign(author, self._drafters[author], why) for author in self._active()]
        # Nodes too unlikely to send below the old root may be likely below the new one.
        return [*advances, *assigns, *self._reroute(), *self._forward(self._tree.walk())]

    def _choose_cuts(self) -> bool:
        """Choose the limits of unlikely paths; return True if they have changed."""
        before = self._cuts
        self._cuts = VERIFIER_CUTS if self._verifier.is_here else CLIENT_CUTS
        # Most heads of stages have a drafter.
        if self._verifier.has_stages and (self._has_home or self._seen_tokens < JUDGED_TOKENS):
            self._cuts = BESIDE_HOME_CUTS
        self._forwarder.min_path_probability = self._cuts.min_path_probability
        return self._cuts != before

    def _reroute(self) -> list[Action]:
        actions: list[Action] = []
        for author in self._active():
            if self._drafters[author].silent_tokens >= SILENT_TOKENS:
                self._drafters[author].back_off(self._seen_tokens)
                self._router.leave(author)
                why = f"it said nothing new for {SILENT_TOKENS} tokens"
                actions.append(ReleaseDrafter(author, why, ReleaseReason.NOTHING_NEW))
        self._end_backoffs()
        wanted = self._wanted()
        for author in self._active():
            if author not in wanted:
                self._drafters[author].state = DrafterState.RELEASED
                actions.append(self._release(author))
        return [*actions, *self._recall(wanted)]

    def _release(self, author: int) -> ReleaseDrafter:
        reason = ReleaseReason.OTHERS_BETTER
        if not self._limit:
            words, reason = "no drafters are wanted now", ReleaseReason.UNWANTED
        elif not self._drafters[author].is_judged:
            words = "others seem to fit better"
        elif self._router.weights()[author] < MIN_WEIGHT:
            words, reason = "its guesses were seldom right", ReleaseReason.SELDOM_RIGHT
        else:
            words = "others guess better, or as well and sooner"
        return ReleaseDrafter(author, f"{words} ({self._router.why(author)})", reason)

    def _end_backoffs(self) -> None:
        backing_off = [d for _, d in sorted(self._drafters.items()) if d.state is DrafterState.BACKING_OFF]
        is_all = len(backing_off) == len(self._drafters) and not self._has_home
        for drafter in backing_off:
            if is_all or self._seen_tokens >= drafter.backs_off_until:
                drafter.state = DrafterState.RELEASED
                self._router.join(drafter.facts)

    def _wanted(self) -> set[int]:
        limit = self._limit
        if not limit:
            return set()
        weights = self._router.weights()
        wanted = {author for author, drafter in self._drafters.items() if drafter.state is DrafterState.RESUMED}
        # The best of those that have drafted is replaced only by another that has drafted.
        proven = [author for author in self._active() if author not in wanted]
        wanted.update(sorted(proven, key=lambda author: -weights[author])[:1])
        for rank, author in enumerate(self._router.ranked()[:limit]):
            if not rank or weights[author] >= MIN_WEIGHT or not self._drafters[author].is_judged:
                wanted.add(author)
        return wanted

    def _recall(self, wanted: Set[int]) -> list[Action]:
        followed = [d for d in self._drafters.values() if d.is_active or d.state is DrafterState.RECALLED]
        room = max(0, self._limit - len(followed))
        released = [a for a in sorted(wanted) if self._drafters[a].state is DrafterState.RELEASED]
        actions: list[Action] = []
        for author in released[:room]:
            self._drafters[author].state = DrafterState.RECALLED
            actions.append(RecallDrafter(author, f"to see if it fits the text now ({self._router.why(author)})"))
        return actions
