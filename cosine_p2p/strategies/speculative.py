"""Speculative decoding as usually run: one drafter, a synchronous chain, its length tuned to the link."""

from typing import Final

from cosine_p2p.speculation.draft_length import best_draft_tokens
from cosine_p2p.strategies.base import (
    Action,
    Committed,
    Drafted,
    DrafterLost,
    DrafterStarted,
    Event,
    Opened,
    SendAdvance,
    SendAssign,
    SendVerify,
    Tick,
    WakeAt,
)
from cosine_p2p.tree import LiveTree, TreeNode
from cosine_protocol.nodes import BASE, Node

FIRST_ACCEPTANCE: Final = 0.6
MIN_ACCEPTANCE: Final = 0.2
ACCEPTANCE_WEIGHT: Final = 0.05
PATIENCE_FACTOR: Final = 3.0
MIN_PATIENCE_S: Final = 0.25


class Speculative:
    """Rounds of draft, verify, repeat, with the live drafter that knows the prompt best.

    One whose drafts are hardly accepted comes after all others, whatever it says of the prompt.
    A draft that does not come within three times its expected time is not waited for.
    """

    def __init__(self, root: bytes, position: int = 0) -> None:
        self._tree = LiveTree(root, position)
        self._drafters: dict[int, DrafterStarted] = {}
        self._verifier = Opened(0.0, 0.0)
        self._acceptance: dict[int, float] = {}
        self._drafting: int | None = None
        self._wanted_tokens = 0
        self._is_verifying = True
        self._sent_tokens = 0

    def on(self, event: Event, now_s: float) -> list[Action]:
        match event:
            case Opened():
                self._verifier = event
                self._is_verifying = True
                return []
            case DrafterStarted():
                self._drafters[event.author] = event
                self._acceptance.setdefault(event.author, FIRST_ACCEPTANCE)
                return []
            case DrafterLost(author):
                self._drafters.pop(author, None)
                return self._verify() if author == self._drafting else []
            case Drafted(author, draft):
                if author != self._drafting:
                    return []
                self._tree.attach(draft.base, draft.position, draft.nodes, [author] * len(draft.nodes))
                return self._verify() if len(self._chain()) >= self._wanted_tokens else []
            case Committed():
                return self._begin_round(event, now_s)
            case Tick():
                return self._verify()

    def _begin_round(self, event: Committed, now_s: float) -> list[Action]:
        self._learn(len(event.tokens) - 1)
        self._tree.advance(event.tokens)
        self._is_verifying = False
        actions: list[Action] = [SendAdvance(author, event.position, event.tokens) for author in self._drafters]
        if not self._drafters:
            return actions + self._verify()
        return actions + self._ask(max(self._drafters.values(), key=self._merit), now_s)

    def _merit(self, drafter: DrafterStarted) -> tuple[bool, float]:
        return self._acceptance[drafter.author] >= MIN_ACCEPTANCE, -drafter.prompt_nll

    def _ask(self, drafter: DrafterStarted, now_s: float) -> list[Action]:
        acceptance = self._acceptance[drafter.author]
        round_trips_s = drafter.rtt_s + self._verifier.rtt_s
        self._wanted_tokens = best_draft_tokens(
            acceptance=acceptance,
            draft_token_s=drafter.token_s,
            round_trips_s=round_trips_s,
            verify_s=self._verifier.pass_s,
        )
        self._drafting = drafter.author
        expected_s = drafter.rtt_s + self._wanted_tokens * drafter.token_s
        why = f"{self._wanted_tokens} tokens: acceptance {acceptance:.2f}, {1e3 * round_trips_s:.0f} ms of RTT"
        return [
            SendAssign(
                drafter.author,
                self._tree.root,
                self._tree.position,
                (),
                self._wanted_tokens,
                1,
                self._wanted_tokens,
                why,
            ),
            WakeAt(now_s + max(MIN_PATIENCE_S, PATIENCE_FACTOR * expected_s)),
        ]

    def _verify(self) -> list[Action]:
        if self._is_verifying:
            return []
        self._is_verifying = True
        chain = self._chain()[: self._wanted_tokens]
        self._sent_tokens = len(chain)
        authors = tuple(next(iter(node.claims)) for node in chain)
        nodes = tuple(
            Node(index - 1 if index else BASE, node.token, node.claims[author])
            for index, (node, author) in enumerate(zip(chain, authors, strict=True))
        )
        return [SendVerify(self._tree.root, self._tree.position, nodes, authors)]

    def _chain(self) -> list[TreeNode]:
        """The most confident chain below the root."""
        chain: list[TreeNode] = []
        digest = self._tree.root
        while children := self._tree.children_of(digest):
            nodes = [node for child in children.values() if (node := self._tree.get(child)) is not None]
            chain.append(max(nodes, key=lambda node: max(node.claims.values())))
            digest = chain[-1].digest
        return chain

    def _learn(self, accepted: int) -> None:
        """Per-token acceptance from a round: `accepted` hits and, unless all hit, one miss."""
        if not self._sent_tokens or self._drafting is None:
            return
        for index in range(min(accepted + 1, self._sent_tokens)):
            hit = float(index < accepted)
            self._acceptance[self._drafting] += ACCEPTANCE_WEIGHT * (hit - self._acceptance[self._drafting])
        self._sent_tokens = 0
