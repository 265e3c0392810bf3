"""Speculation parallelism (DSI, arXiv 2405.14105): one drafter that never waits, and several verifiers.

All verifiers of a request have one pacing, so here the paper's thread of the target alone is stepped through the
client too: wherever a pass adds to the stream without drafts, a round trip lies between it and the next, and over
distances it can be slower than plain decoding, which the paper's is not. `dsi` shows that thread on free pacing.

After every `lookahead` drafted tokens a free verifier gets the chain from its own committed prefix to the newest
token, so that verification costs time only where a draft is rejected. Over a network a pass occupies its verifier
for the round trip too, so the paper's equation 1 becomes ceil((t_target + RTT) / (lookahead t_drafter)) <= SP.
"""

import math
from dataclasses import dataclass
from typing import Final

from cosine_lab.rivals.lone_drafter import LoneDrafter
from cosine_lab.rivals.paths import best_path, chain_block
from cosine_lab.rivals.rounds import MIN_PATIENCE_S, PATIENCE_FACTOR
from cosine_p2p.strategy.base import (
    Action,
    Committed,
    DrafterLost,
    DrafterStarted,
    Event,
    FragmentReceived,
    SendTree,
    VerifierOpened,
    WakeAt,
)
from cosine_p2p.strategy.moving_average import moving_average
from cosine_p2p.strategy.tree import LiveTree, TreeNode
from cosine_protocol.digests import extend_digest
from cosine_protocol.limits import MAX_TREE_DEPTH

PASS_WEIGHT: Final = 0.2
"""About the last 5 passes count."""
OVERDUE_PASSES: Final = 4.0
"""A pass that takes so many times as long as expected is not counted on."""
MIN_OVERDUE_S: Final = 1.0
"""No pass is overdue sooner, however fast its verifier is."""


@dataclass(frozen=True, slots=True)
class OpenedAt(VerifierOpened):
    """The verifier in slot `verifier` took the request."""

    verifier: int = 0


@dataclass(frozen=True, slots=True)
class CommittedAt(Committed):
    """The verifier in slot `verifier` committed up to `digest`; `tokens` are what others had not committed yet."""

    verifier: int = 0


@dataclass(frozen=True, slots=True)
class SendTask(SendTree):
    """Ask the verifier in slot `verifier` for a pass over a block; its base is the prefix it has committed."""

    verifier: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DsiParallelOptions:
    """`author` drafts, or for None the best; `lookahead_tokens` is computed for None.

    With `is_eager` a verifier goes at once wherever no other pass can extend the stream, with what is drafted so
    far: the paper's thread of the target itself below every corrected prefix. Else it waits for a whole lookahead.
    """

    author: int | None = None
    lookahead_tokens: int | None = None
    is_eager: bool = True


@dataclass(slots=True)
class _TaskedVerifier:
    """A verifier: where it stands, and the prefixes that its pass under way is over, its own included.

    `digest` is None until its prefill has committed. Past `due_s` its pass is not counted on any more.
    """

    pass_s: float
    rtt_s: float
    digest: bytes | None = None
    position: int = 0
    is_busy: bool = True
    prefixes: frozenset[bytes] = frozenset()
    due_s: float = math.inf


class DsiParallel:
    """Tasks to free verifiers as drafts come; the first answer for a position is the stream's."""

    def __init__(self, root: bytes, position: int = 0, options: DsiParallelOptions | None = None) -> None:
        self._options = options or DsiParallelOptions()
        self._tree = LiveTree(root, position)
        self._drafter = LoneDrafter(
            self._tree, author=self._options.author, depth_tokens=MAX_TREE_DEPTH, width_nodes=1
        )
        self._verifiers: dict[int, _TaskedVerifier] = {}
        self._first_position = position
        self._output: list[int] = []
        self._positions = {root: position}
        self._submitted = root
        self._idle_since_s: float | None = None

    def on(self, event: Event, now_s: float) -> list[Action]:
        return [*self._on_event(event), *self._dispatch(now_s)]

    def _on_event(self, event: Event) -> list[Action]:
        match event:
            case OpenedAt():
                self._verifiers[event.verifier] = _TaskedVerifier(event.pass_s, event.rtt_s)
                return []
            case DrafterStarted():
                return self._drafter.join(event)
            case DrafterLost(author):
                return self._drafter.leave(author)
            case FragmentReceived(author, draft):
                if author == self._drafter.drafting:
                    self._tree.attach(draft.base, draft.position, draft.nodes, [author] * len(draft.nodes))
                return []
            case CommittedAt():
                return self._commit(event)
            case _:
                return []

    def _commit(self, event: CommittedAt) -> list[Action]:
        self._drafter.learn(event.tokens)
        for token in event.tokens:
            self._output.append(token)
            self._tree.advance([token])
            self._positions[self._tree.root.digest] = self._tree.position
        verifier = self._verifiers[event.verifier]
        if verifier.digest is not None:
            verifier.pass_s = moving_average(verifier.pass_s, event.stats.pass_us / 1e6, weight=PASS_WEIGHT)
        verifier.digest, verifier.position = event.digest, self._positions[event.digest]
        verifier.is_busy, verifier.prefixes = False, frozenset()
        return self._drafter.advance(event)

    def _dispatch(self, now_s: float) -> list[Action]:
        """Give work to free verifiers, the one that stands furthest first.

        A verifier may vanish with its pass, and drafts may not come: then it looks again.
        """
        actions: list[Action] = []
        chain = best_path(self._tree, lambda node: node.draft_probability)
        free = [slot for slot, verifier in self._verifiers.items() if not verifier.is_busy]
        for slot in sorted(free, key=lambda slot: -self._verifiers[slot].position):
            if not self._is_due(chain, now_s):
                break
            actions.append(self._submit(slot, chain, now_s))
        times = [verifier.due_s for verifier in self._verifiers.values() if verifier.is_busy]
        if self._idle_since_s is not None:
            times.append(self._idle_since_s + self._patience_s())
        ahead = [at for at in times if now_s < at < math.inf]
        return [*actions, WakeAt(min(ahead))] if ahead else actions

    def _is_due(self, chain: list[TreeNode], now_s: float) -> bool:
        """Return whether a free verifier should go now."""
        known = next((n for n, node in enumerate(chain, 1) if node.digest == self._submitted), 0)
        if len(chain) - known >= self._lookahead():
            return True
        # Only a pass over the newest prefix adds to the stream; all others are void.
        root = self._tree.root.digest
        if any(v.is_busy and now_s < v.due_s and root in v.prefixes for v in self._verifiers.values()):
            self._idle_since_s = None
            return False
        if self._idle_since_s is None:
            self._idle_since_s = now_s
        is_alone = self._drafter.drafting is None
        return is_alone or self._options.is_eager or now_s >= self._idle_since_s + self._patience_s()

    def _lookahead(self) -> int:
        """The fewest tokens a task may bring without more verifiers being needed than there are."""
        if self._options.lookahead_tokens is not None:
            return self._options.lookahead_tokens
        token_s = self._drafter.token_s
        if not token_s or not self._verifiers:
            return MAX_TREE_DEPTH
        occupied_s = max(verifier.pass_s + verifier.rtt_s for verifier in self._verifiers.values())
        tokens = math.ceil(occupied_s / (len(self._verifiers) * token_s))
        return max(1, min(tokens, MAX_TREE_DEPTH))

    def _patience_s(self) -> float:
        expected_s = self._lookahead() * (self._drafter.token_s or 0.0)
        return max(MIN_PATIENCE_S, PATIENCE_FACTOR * expected_s)

    def _submit(self, slot: int, chain: list[TreeNode], now_s: float) -> SendTask:
        """Give a verifier the chain; what others committed past it goes as nodes too, credited to nobody."""
        verifier = self._verifiers[slot]
        assert verifier.digest is not None
        committed = self._output[verifier.position - self._first_position :]
        ahead = [(node.token, node.draft_probability, node.most_confident_author()) for node in chain]
        task = [*((token, 1.0, 0) for token in committed), *ahead][:MAX_TREE_DEPTH]
        prefixes = [verifier.digest]
        for token, _, _ in task:
            prefixes.append(extend_digest(prefixes[-1], token))
        verifier.is_busy, verifier.prefixes = True, frozenset(prefixes)
        verifier.due_s = now_s + max(MIN_OVERDUE_S, OVERDUE_PASSES * (verifier.pass_s + verifier.rtt_s))
        self._submitted = prefixes[-1]
        self._idle_since_s = None
        return SendTask(chain_block(verifier.digest, verifier.position, task), slot)
