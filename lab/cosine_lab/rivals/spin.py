"""SPIN (Chen et al. 2025): every request has the drafter of the largest goodput, several requests matched at once.

The reward of a drafter is its goodput, accepted tokens per second of drafting (`goodput_bandit`); periods
of exploration and of exploitation alternate. Requests are assigned to drafters of bounded capacity by a matching of
maximum weight. Every drafter follows every commit, so the one a request switches to has its cache built: this is
the paper's fast switching. Its pipeline of micro-batches is the verifier's continuous batching here, which passes
over whatever requests are ready while the drafters of the others draft; its splitting of long requests is made
needless by attention over pages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cosine_lab.rivals.batch_objective import FORGET_S
from cosine_lab.rivals.chance import RequestChance
from cosine_lab.rivals.goodput_bandit import DraftedRounds, GoodputRouter
from cosine_lab.rivals.matching import assign
from cosine_lab.rivals.router import JudgedRound
from cosine_lab.rivals.speculative import ChainRounds
from cosine_p2p.strategy.base import DrafterStarted
from cosine_p2p.strategy.router import DrafterFacts
from cosine_p2p.strategy.tree import TreeNode

LEAST_VALUE: Final = 1e-6
"""Accepted tokens per second; what ranks drafters without any evidence."""
FORGETTING: Final = 0.05
"""A choice: a drafter's last 20 rounds count, about a paragraph of text."""


@dataclass(slots=True)
class _Wish:
    values: dict[str, float]
    at_s: float


class SpinDirector:
    """Assigns the requests that share it to drafters, by maximum total goodput, `places` requests to a drafter.

    A request says what each drafter is worth to it when it begins a round, and gets the drafter that it has in the
    best assignment of all requests at that moment; the others follow at their next round. One that has not asked
    for `FORGET_S` is taken to be over. What drafters brought lives on here for requests to come.
    """

    def __init__(self, *, places: int = 8) -> None:
        self._places = places
        self._wishes: dict[bytes, _Wish] = {}
        self._brought: dict[str, DraftedRounds] = {}

    def place(self, request: bytes, values: Mapping[str, float], now_s: float) -> str | None:
        """The drafter a request gets, by name; None if all places have gone to requests that gain more."""
        self._wishes[request] = _Wish(dict(values), now_s)
        self._wishes = {r: wish for r, wish in self._wishes.items() if now_s - wish.at_s <= FORGET_S}
        names = sorted({name for wish in self._wishes.values() for name in wish.values})
        table = [[wish.values.get(name, 0.0) for name in names] for wish in self._wishes.values()]
        placed = assign(table, [self._places] * len(names))[list(self._wishes).index(request)]
        return None if placed is None else names[placed]

    def note(self, name: str, *, accepted: int, draft_s: float) -> None:
        """Take in a round of a drafter; the last of them count, as within a request."""
        known = self._brought.get(name, DraftedRounds())
        keep = 1.0 - FORGETTING
        self._brought[name] = DraftedRounds(
            keep * known.rounds + 1.0, keep * known.tokens + accepted, keep * known.draft_s + draft_s
        )

    def brought(self, name: str) -> DraftedRounds | None:
        """What a drafter brought lately, None if nothing is known of it."""
        return self._brought.get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpinOptions:
    """`draft_tokens` as in `ChainRounds`, the rest but `names` as in `GoodputRouter`.

    `names` tells the director which drafter an author is, across the requests that share it; by default its number.
    """

    draft_tokens: int | None = None
    explore_rounds: int = 4
    exploit_rounds: int = 16
    prior_rounds: float = 0.0
    names: Mapping[int, str] = field(default_factory=dict)


class Spin(ChainRounds):
    """Rounds of one chain, by the drafter that the director gives the request."""

    def __init__(
        self,
        root: bytes,
        position: int = 0,
        *,
        options: SpinOptions = SpinOptions(),
        director: SpinDirector | None = None,
    ) -> None:
        super().__init__(root, position, draft_tokens=options.draft_tokens)
        self._request = root
        self._names = options.names
        self._director = director or SpinDirector()
        self._router = GoodputRouter(
            RequestChance(root),
            explore_rounds=options.explore_rounds,
            exploit_rounds=options.exploit_rounds,
            forgetting=FORGETTING,
            prior_rounds=options.prior_rounds,
        )

    def _join(self, drafter: DrafterStarted) -> None:
        super()._join(drafter)
        facts = DrafterFacts(prompt_nll=drafter.prompt_nll, token_s=drafter.token_s, rtt_s=drafter.rtt_s)
        self._router.join(drafter.author, facts, self._director.brought(self._name(drafter.author)))

    def _leave(self, author: int) -> None:
        super()._leave(author)
        self._router.leave(author)

    def _name(self, author: int) -> str:
        return self._names.get(author, str(author))

    def _why(self, author: int) -> str:
        return self._router.why(author)

    def _pick(self, now_s: float) -> int | None:
        """The drafter that the director gives this request by their goodputs.

        To explore, the largest goodput goes to the drafter tried least, and so on.
        """
        goodputs = self._router.goodputs()
        order = self._router.pick(len(goodputs))
        ranked = sorted(goodputs.values(), reverse=True)
        values = {
            author: value + LEAST_VALUE * (len(order) - rank)
            for rank, (author, value) in enumerate(zip(order, ranked, strict=True))
        }
        names = {self._name(author): author for author in self._present()}
        wish = {name: values[author] for name, author in names.items()}
        placed = self._director.place(self._request, wish, now_s) if wish else None
        return None if placed is None else names[placed]

    def _judge(self, author: int, chain: Sequence[TreeNode], *, accepted: int) -> None:
        super()._judge(author, chain, accepted=accepted)
        asked = self._asked[author]
        drafted = max(1, len(chain))
        took_s = (asked.last_s or asked.at_s) - asked.at_s
        # Drafts that were there before they were asked for took time too.
        draft_s = max(took_s, drafted * self._drafters[author].token_s)
        self._director.note(self._name(author), accepted=accepted, draft_s=draft_s)
        self._router.learn(
            JudgedRound(
                authors=frozenset((author,)),
                used=frozenset((author,)),
                accepted={author: accepted},
                draft_s={author: draft_s},
            )
        )
