"""SpecInfer (Miao et al. 2024): several drafters draft a tree each, merged by prefix and verified in one pass.

The paper's drafters are tuned to complement each other and all of them draft. Here the options limit their number,
since a verifier's pass has room for a few nodes only.
"""

import math
from dataclasses import dataclass
from typing import Final

from cosine_lab.rivals.paths import first_choice
from cosine_lab.rivals.rounds import RoundAcceptance, Rounds, best_draft_tokens, merged
from cosine_p2p.strategy.base import Action, DrafterStarted, WakeAt
from cosine_p2p.strategy.tree import TreeNode

FADING_TOKENS: Final = 8.0
"""Number of judged tokens after which the prompt counts half as much."""
SLACK: Final = 1.1
"""Multiple of the expected time after which a drafter's tree is verified as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecInferOptions:
    """Options of `SpecInfer`.

    authors: drafters to use. Default: the best `drafters` so far.
    depth_tokens: depth of each tree. Default: tuned to the measured speeds.
    width_nodes, tree_nodes: nodes that a drafter expands per pass and in all.
    max_nodes: nodes of the merged tree that are verified, the likeliest.
    """

    authors: tuple[int, ...] | None = None
    drafters: int = 2
    depth_tokens: int | None = None
    width_nodes: int = 2
    tree_nodes: int = 32
    max_nodes: int = 12


class SpecInfer(Rounds):
    """Rounds of trees. The best drafters so far are those whose first choices were accepted most often.

    A drafter that was not judged yet is placed by the likelihood it gives the prompt.
    """

    def __init__(self, root: bytes, position: int = 0, *, options: SpecInferOptions = SpecInferOptions()) -> None:
        super().__init__(root, position, width_nodes=options.width_nodes)
        self._options = options
        self._acceptance = RoundAcceptance()
        self._by_author: dict[int, RoundAcceptance] = {}
        self._depth_tokens = 0
        self._due_s = 0.0

    def _join(self, drafter: DrafterStarted) -> None:
        super()._join(drafter)
        self._by_author.setdefault(drafter.author, RoundAcceptance())

    def _begin(self, now_s: float) -> list[Action]:
        authors = self._pick()
        if not authors:
            return []
        slowest = max(authors, key=lambda author: self._drafters[author].rtt_s + self._pace(author))
        self._depth_tokens = self._options.depth_tokens or best_draft_tokens(
            acceptance=self._acceptance.rate,
            draft_token_s=self._pace(slowest),
            round_trips_s=self._drafters[slowest].rtt_s + self._verifier.rtt_s,
            verify_s=self._verify_s,
        )
        expected_s = max(self._drafters[a].rtt_s + self._depth_tokens * self._pace(a) for a in authors)
        self._due_s = now_s + SLACK * expected_s
        return self._ask(
            [
                # A drafter expands what is `depth` tokens deep, so its leaves lie one token deeper.
                self._assign(
                    author,
                    depth=max(1, self._depth_tokens - 1),
                    width=self._width_nodes,
                    window=self._options.tree_nodes,
                    why=f"acceptance {self._by_author[author].rate:.2f}, a tree of {self._depth_tokens} tokens",
                )
                for author in authors
            ],
            expected_s=expected_s,
            now_s=now_s,
            due_s=self._due_s,
        )

    def _pick(self) -> list[int]:
        present = self._present()
        if self._options.authors is not None:
            return [author for author in self._options.authors if author in present]
        nearest = min((d.prompt_nll for d in present.values()), default=0.0)
        # An author's likelihood of the prompt counts less during the request.
        faded = 1.0 + sum(known.judged for known in self._by_author.values()) / FADING_TOKENS
        merits = {
            author: self._by_author[author].rate * math.exp((nearest - drafter.prompt_nll) / faded)
            for author, drafter in present.items()
        }
        return sorted(merits, key=lambda author: (-merits[author], author))[: self._options.drafters]

    def _go_on(self, now_s: float) -> list[Action] | None:
        grown = []
        for author in self._awaited():
            own = [node for node in self._tree.walk() if author in node.draft_probabilities]
            deepest = max((node.position + 1 - self._tree.position for node in own), default=0)
            grown.append(deepest >= self._depth_tokens or len(own) >= self._options.tree_nodes)
        if all(grown):
            return None
        if now_s < self._due_s:
            return []
        return None if all(map(self._has_drafted, self._awaited())) else [WakeAt(self._deadline_s)]

    def _chosen(self) -> list[TreeNode]:
        return merged(self._tree, self._asked.keys(), most=self._options.max_nodes)

    def _learn(self, tokens: tuple[int, ...]) -> None:
        chosen = self._chosen()
        path = [node for node in self._tree.follow(tokens) if node in chosen]
        if chosen:
            self._acceptance.learn(accepted=len(path), drafted=max(len(path) + 1, self._depth_tokens))
        for author, asked in self._asked.items():
            if asked.first_s is not None:
                self._note_pace(author, asked.first_s - asked.at_s, tokens=1)
            self._judge(author, tokens)

    def _judge(self, author: int, tokens: tuple[int, ...]) -> None:
        """Learn from an author's first choices along the committed tokens."""
        for parent, token in zip((self._tree.root, *self._tree.follow(tokens)), tokens, strict=False):
            first = first_choice(parent, author)
            if first is None:
                return
            self._by_author[author].learn(accepted=int(first.token == token), drafted=1)
