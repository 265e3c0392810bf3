"""Speculative decoding as usually run: one drafter, a synchronous chain, its length tuned to the link."""

from dataclasses import dataclass
from typing import Final

from cosine_lab.rivals.rounds import RoundAcceptance, Rounds, best_draft_tokens, chain_of
from cosine_p2p.strategy.base import Action, DrafterStarted
from cosine_p2p.strategy.tree import TreeNode

MIN_ACCEPTANCE: Final = 0.2
"""Acceptance below which a drafter hardly helps, whatever its likelihood of the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeOptions:
    """Options of `Speculative`.

    draft_tokens: length of every draft. Default: tuned to the measured link, drafter, pass and acceptance.
    author: drafter to use. Default: the one with the best likelihood of the prompt.
    """

    draft_tokens: int | None = None
    author: int | None = None


class Speculative(Rounds):
    """Rounds in which one drafter drafts one chain: the live one with the best likelihood of the prompt.

    A drafter whose drafts are hardly accepted ranks after all others.
    """

    def __init__(
        self, root: bytes, position: int = 0, *, options: SpeculativeOptions = SpeculativeOptions()
    ) -> None:
        super().__init__(root, position)
        self._options = options
        self._acceptance: dict[int, RoundAcceptance] = {}
        self._drafting: int | None = None
        self._wanted_tokens = 0

    def _join(self, drafter: DrafterStarted) -> None:
        super()._join(drafter)
        self._acceptance.setdefault(drafter.author, RoundAcceptance())

    def _pick(self) -> int | None:
        """Return the present author that drafts next, if any."""
        present = self._present()
        if self._options.author is not None:
            return self._options.author if self._options.author in present else None
        return max(present, key=self._merit, default=None)

    def _merit(self, author: int) -> tuple[bool, float]:
        return self._acceptance[author].rate >= MIN_ACCEPTANCE, -self._drafters[author].prompt_nll

    def _begin(self, now_s: float) -> list[Action]:
        self._drafting = self._pick()
        if self._drafting is None:
            return []
        drafter = self._drafters[self._drafting]
        acceptance = self._acceptance[drafter.author].rate
        round_trips_s = drafter.rtt_s + self._verifier.rtt_s
        self._wanted_tokens = wanted = self._options.draft_tokens or best_draft_tokens(
            acceptance=acceptance,
            draft_token_s=self._pace(drafter.author),
            round_trips_s=round_trips_s,
            verify_s=self._verify_s,
        )
        why = f"{wanted} tokens: acceptance {acceptance:.2f}, {1e3 * round_trips_s:.0f} ms of RTT"
        assign = self._assign(drafter.author, depth=wanted, width=1, window=wanted, why=why)
        expected_s = drafter.rtt_s + wanted * self._pace(drafter.author)
        return self._ask([assign], expected_s=expected_s, now_s=now_s)

    def _go_on(self, now_s: float) -> list[Action] | None:
        return None if len(self._chosen()) >= self._wanted_tokens else []

    def _chosen(self) -> list[TreeNode]:
        if self._drafting is None:
            return []
        return chain_of(self._tree, self._drafting)[: self._wanted_tokens]

    def _learn(self, tokens: tuple[int, ...]) -> None:
        author = self._drafting
        if author is None or author not in self._awaited():
            return
        chain = self._chosen()
        asked = self._asked[author]
        if asked.last_s is not None:
            self._note_pace(author, asked.last_s - asked.at_s, tokens=len(chain))
        accepted = len([node for node in self._tree.follow(tokens) if node in chain])
        self._acceptance[author].learn(accepted=accepted, drafted=len(chain))
