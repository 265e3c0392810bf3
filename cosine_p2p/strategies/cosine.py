"""Ours: several drafters run ahead, their drafts are fused into one live tree, the verifier never waits.

Every drafter follows each commit and keeps growing its own tree; what it sends is weighed against the others
(`speculation.fusion`) and forwarded at once where it is likely enough to be worth a place in a pass.
"""

from typing import Final

from cosine_p2p.speculation.fusion import FusedView, Fusion
from cosine_p2p.strategies.base import (
    Action,
    Committed,
    Drafted,
    DrafterLost,
    DrafterStarted,
    Event,
    Opened,
    ReleaseDrafter,
    SendAdvance,
    SendAssign,
    SendTree,
)
from cosine_p2p.tree import LiveTree, TreeNode
from cosine_protocol.nodes import BASE, MAX_BLOCK_NODES, Node

MIN_PATH_PROBABILITY: Final = 0.005
RESEND_CHANGE: Final = 0.1
DEPTH_TOKENS: Final = 24
WIDTH_NODES: Final = 4
WINDOW_NODES: Final = 256
TRIAL_TOKENS: Final = 8
MIN_WEIGHT: Final = 0.03
KEPT_DRAFTERS: Final = 2
BLOCK_NODES: Final = 32


class Cosine:
    """Cooperative speculation. Which drafters stay is decided by how well they predicted this request."""

    def __init__(self, root: bytes, position: int = 0) -> None:
        self._tree = LiveTree(root, position)
        self._fusion = Fusion()
        self._sent: dict[bytes, float] = {}
        self._is_open = False
        self._seen_tokens = 0

    def on(self, event: Event, now_s: float) -> list[Action]:
        del now_s
        match event:
            case Opened():
                self._is_open = True
                self._sent.clear()
                return self._forward(list(self._tree.walk()))
            case DrafterStarted():
                return self._start(event)
            case DrafterLost(author):
                self._fusion.leave(author)
                return []
            case Drafted(author, draft):
                authors = [author] * len(draft.nodes)
                return self._forward(self._tree.attach(draft.base, draft.position, draft.nodes, authors))
            case Committed():
                return self._commit(event)
            case _:
                return []

    def weights(self) -> dict[int, float]:
        """Present weight of every author, for people."""
        return self._fusion.mixture.weights()

    def _start(self, drafter: DrafterStarted) -> list[Action]:
        self._fusion.join(drafter.author, prompt_nll=drafter.prompt_nll)
        why = f"prompt likelihood {drafter.prompt_nll:.2f} nats a token, RTT {1e3 * drafter.rtt_s:.0f} ms"
        assign = SendAssign(
            drafter.author,
            self._tree.root,
            self._tree.position,
            (),
            DEPTH_TOKENS,
            WIDTH_NODES,
            WINDOW_NODES,
            why,
        )
        released = self._drop_weak()
        is_kept = drafter.author in self._fusion.mixture.authors
        return [assign, *released] if is_kept else released

    def _commit(self, event: Committed) -> list[Action]:
        self._fusion.learn(self._tree, event.tokens)
        self._tree.advance(event.tokens)
        self._sent = {digest: p for digest, p in self._sent.items() if digest in self._tree}
        self._seen_tokens += len(event.tokens)
        advances = [SendAdvance(author, event.position, event.tokens) for author in self._fusion.mixture.authors]
        # What was too unlikely to send under the old root may be likely under the new one.
        return [*advances, *self._drop_weak(), *self._forward(list(self._tree.walk()))]

    def _drop_weak(self) -> list[Action]:
        """Keep the two drafters that predict this request best.

        At first only their word counts, the likelihood of the prompt, so both stay. With evidence the second goes
        if its weight is near zero, and whoever says nothing goes first.
        """
        mixture = self._fusion.mixture
        weights = mixture.weights()
        has_evidence = self._seen_tokens >= TRIAL_TOKENS
        silent = {author for author in weights if mixture.silent_tokens(author) >= TRIAL_TOKENS}
        ranked = sorted(weights.items(), key=lambda pair: (pair[0] in silent, -pair[1]))
        weak = [
            (author, weight)
            for rank, (author, weight) in enumerate(ranked)
            if rank >= KEPT_DRAFTERS or author in silent or (rank and has_evidence and weight < MIN_WEIGHT)
        ]
        for author, _ in weak:
            self._fusion.leave(author)
        return [ReleaseDrafter(author, f"its weight is {weight:.3f}") for author, weight in weak]

    def _forward(self, touched: list[TreeNode]) -> list[Action]:
        """Send the verifier what is new or has changed, connected to a base that it knows."""
        if not self._is_open:
            return []
        view = self._fusion.view(self._tree)
        wanted = [node for node in touched if self._is_worth_sending(view, node)]
        return [
            self._block(view, wanted[start : start + BLOCK_NODES]) for start in range(0, len(wanted), BLOCK_NODES)
        ]

    def _is_worth_sending(self, view: FusedView, node: TreeNode) -> bool:
        if node.digest not in self._tree or view.path_probability(node) < MIN_PATH_PROBABILITY:
            return False
        known = self._sent.get(node.digest)
        return known is None or abs(known - view.conditional(node)) >= RESEND_CHANGE

    def _block(self, view: FusedView, wanted: list[TreeNode]) -> SendTree:
        """One block that holds the wanted nodes and what connects them below their common ancestor."""
        paths = [[step.digest for step in self._tree.path(node.digest)] for node in wanted]
        shared = self._known_length(paths)
        digests = list(dict.fromkeys(digest for path in paths for digest in path[shared:]))[:MAX_BLOCK_NODES]
        index = {digest: number for number, digest in enumerate(digests)}
        base = paths[0][shared - 1] if shared else self._tree.root
        nodes, authors = [], []
        for digest in digests:
            node = self._tree.get(digest)
            assert node is not None
            confidence = view.conditional(node)
            self._sent[digest] = confidence
            nodes.append(Node(index.get(node.parent, BASE), node.token, confidence))
            authors.append(view.best_author(node))
        return SendTree(base, self._tree.position + shared, tuple(nodes), tuple(authors))

    def _known_length(self, paths: list[list[bytes]]) -> int:
        """How many first steps all paths share and the verifier was sent, leaving every path its last step."""
        shortest = min(map(len, paths))
        known = 0
        while known < shortest - 1 and paths[0][known] in self._sent and len({path[known] for path in paths}) == 1:
            known += 1
        return known
