"""Speculative decoding as usually run: one drafter, a synchronous chain, its length tuned to the link."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cosine_lab.rivals.rounds import Acceptance, Rounds, best_draft_tokens, chain_of
from cosine_p2p.strategy.base import Action, DrafterStarted
from cosine_p2p.strategy.tree import TreeNode

MIN_ACCEPTANCE: Final = 0.2
"""A drafter below it hardly helps, whatever it says of the prompt."""


class ChainRounds(Rounds):
    """Rounds in which one drafter drafts one chain. A strategy says who does.

    `draft_tokens` is the length of a chain; None tunes it to the measured link, drafter, pass and acceptance.
    """

    def __init__(self, root: bytes, position: int = 0, *, draft_tokens: int | None = None) -> None:
        super().__init__(root, position)
        self._draft_tokens = draft_tokens
        self._acceptance: dict[int, Acceptance] = {}
        self._drafting: int | None = None
        self._wanted_tokens = 0

    @abstractmethod
    def _pick(self, now_s: float) -> int | None:
        """The present author that drafts next; None for nobody."""

    def _why(self, author: int) -> str:
        """The reasons for a drafter, for people."""
        return f"acceptance {self._acceptance[author].rate:.2f}"

    def _join(self, drafter: DrafterStarted) -> None:
        super()._join(drafter)
        self._acceptance.setdefault(drafter.author, Acceptance())

    def _begin(self, now_s: float) -> list[Action]:
        self._drafting = self._pick(now_s)
        if self._drafting is None:
            return []
        drafter = self._drafters[self._drafting]
        round_trips_s = drafter.rtt_s + self._verifier.rtt_s
        self._wanted_tokens = wanted = self._draft_tokens or best_draft_tokens(
            acceptance=self._acceptance[drafter.author].rate,
            draft_token_s=self._pace(drafter.author),
            round_trips_s=round_trips_s,
            verify_s=self._verify_s,
        )
        why = f"{wanted} tokens: {self._why(drafter.author)}, {1e3 * round_trips_s:.0f} ms of RTT"
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
        self._judge(author, chain, accepted=accepted)

    def _judge(self, author: int, chain: Sequence[TreeNode], *, accepted: int) -> None:
        """Take in what became of a chain."""
        self._acceptance[author].learn(accepted=accepted, drafted=len(chain))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeOptions:
    """`draft_tokens` is the length of every draft, None one tuned to what is measured.

    `author` is the drafter to use, None the one that knows the prompt best.
    """

    draft_tokens: int | None = None
    author: int | None = None


class Speculative(ChainRounds):
    """Rounds of draft, verify, repeat, with the live drafter that knows the prompt best.

    One whose drafts are hardly accepted comes after all others, whatever it says of the prompt. With a drafter
    fixed by the options, there is none other.
    """

    def __init__(
        self, root: bytes, position: int = 0, *, options: SpeculativeOptions = SpeculativeOptions()
    ) -> None:
        super().__init__(root, position, draft_tokens=options.draft_tokens)
        self._author = options.author

    def _pick(self, now_s: float) -> int | None:
        present = self._present()
        if self._author is not None:
            return self._author if self._author in present else None
        return max(present, key=self._merit, default=None)

    def _merit(self, author: int) -> tuple[bool, float]:
        return self._acceptance[author].rate >= MIN_ACCEPTANCE, -self._drafters[author].prompt_nll
