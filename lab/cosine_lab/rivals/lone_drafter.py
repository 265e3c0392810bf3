"""The single drafter of strategies that do not wait for it."""

import math
from typing import Final

from cosine_lab.rivals.paths import first_choice
from cosine_lab.rivals.rounds import ACCEPTANCE_WEIGHT, FIRST_ACCEPTANCE
from cosine_p2p.strategy.base import (
    Action,
    Committed,
    DrafterStarted,
    RecallDrafter,
    ReleaseDrafter,
    SendAdvance,
    SendAssign,
)
from cosine_p2p.strategy.moving_average import moving_average
from cosine_p2p.strategy.tree import LiveTree
from cosine_protocol.limits import MAX_WINDOW_NODES

# Above the minimum acceptance the likelihood of the prompt decides, below it the measured acceptance, in steps of
# the error of about twenty tokens.
MIN_ACCEPTANCE: Final = 0.4
ACCEPTANCE_STEP: Final = 0.1


class LoneDrafter:
    """Assigns `author`, or for None the drafter with the best likelihood of the prompt.

    Drafters that are often wrong rank last, by their acceptance. A replaced drafter is released, and recalled once
    it is the best again. `drafting` is the assigned author.
    """

    def __init__(self, tree: LiveTree, *, author: int | None, depth_tokens: int, width_nodes: int) -> None:
        self.drafting: int | None = None
        self._tree = tree
        self._author = author
        self._depth_tokens = depth_tokens
        self._width_nodes = width_nodes
        self._known: dict[int, DrafterStarted] = {}
        self._following: set[int] = set()
        self._recalled: set[int] = set()
        self._acceptance: dict[int, float] = {}

    @property
    def token_s(self) -> float | None:
        """Seconds per token of the assigned drafter, None without one."""
        return None if self.drafting is None else self._known[self.drafting].token_s

    def join(self, drafter: DrafterStarted) -> list[Action]:
        if self._author not in (None, drafter.author):
            return [ReleaseDrafter(drafter.author, f"author {self._author} drafts alone")]
        self._known[drafter.author] = drafter
        self._following.add(drafter.author)
        self._recalled.discard(drafter.author)
        self._acceptance.setdefault(drafter.author, FIRST_ACCEPTANCE)
        return self._settle()

    def leave(self, author: int) -> list[Action]:
        """Remove a drafter."""
        self._known.pop(author, None)
        self._following.discard(author)
        self._recalled.discard(author)
        if author == self.drafting:
            self.drafting = None
        return self._settle()

    def learn(self, tokens: tuple[int, ...]) -> None:
        """Score the drafter's first choices on committed tokens. Must be called before `tree.advance`."""
        author = self.drafting
        if author is None:
            return
        for parent, token in zip((self._tree.root, *self._tree.follow(tokens)), tokens, strict=False):
            if first := first_choice(parent, author):
                self._acceptance[author] = moving_average(
                    self._acceptance[author], first.token == token, weight=ACCEPTANCE_WEIGHT
                )

    def advance(self, event: Committed) -> list[Action]:
        """Send the committed tokens to all drafters, and replace a drafter that is hardly accepted."""
        if not event.tokens:
            return []
        advances = [SendAdvance(author, event.position, event.tokens) for author in sorted(self._following)]
        return [*advances, *self._settle()]

    def _settle(self) -> list[Action]:
        """Assign the best drafter that follows the request; recall a better one."""
        actions: list[Action] = []
        best = max(self._known, key=self._merit, default=None)
        if best is not None and best not in self._following | self._recalled:
            self._recalled.add(best)
            actions.append(RecallDrafter(best, "it is accepted more than those here"))
        present = max(self._following, key=self._merit, default=None)
        if present is None or present == self.drafting:
            return actions
        if self.drafting is not None:
            self._following.discard(self.drafting)
            actions.append(ReleaseDrafter(self.drafting, f"author {present} drafts instead"))
        self.drafting = present
        return [*actions, self._assign(self._known[present])]

    def _merit(self, author: int) -> tuple[int, float]:
        """Return the rank of a drafter, in steps, so that similar drafters do not replace each other repeatedly."""
        steps = math.floor(min(self._acceptance[author], MIN_ACCEPTANCE) / ACCEPTANCE_STEP)
        return steps, -self._known[author].prompt_nll

    def _assign(self, drafter: DrafterStarted) -> SendAssign:
        why = f"it drafts alone: acceptance {self._acceptance[drafter.author]:.2f}"
        tree = self._tree
        return SendAssign(
            drafter.author,
            tree.root.digest,
            tree.position,
            self._depth_tokens,
            self._width_nodes,
            MAX_WINDOW_NODES,
            why,
        )
