"""SPIN (Chen et al. 2025): every request has the drafter of the largest goodput, several requests matched at once.

The reward of a drafter is its goodput, accepted tokens per second of drafting; periods of exploration and of
exploitation alternate, whose lengths are not published and are options here. Requests are assigned to drafters of
bounded capacity by a matching of maximum weight. Every drafter follows every commit, so the one a request switches
to has its cache built: this is the paper's fast switching. Its pipeline of micro-batches is the verifier's
continuous batching here, which passes over whatever requests are ready while the drafters of the others draft; its
splitting of long requests is made needless by attention over pages.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cosine_lab.rivals.cosine_paper import FORGET_S
from cosine_lab.rivals.router import Chance, JudgedRound, RequestChance, prompt_shares, shuffled
from cosine_lab.rivals.speculative import ChainRounds
from cosine_p2p.strategy.base import DrafterStarted
from cosine_p2p.strategy.router import DrafterFacts
from cosine_p2p.strategy.tree import TreeNode


def assign(values: Sequence[Sequence[float]], capacities: Sequence[int]) -> tuple[int | None, ...]:
    """For every request the drafter it gets, or None; exact, in O(requests^2 (slots + requests)).

    `values[request][drafter]` is what the pair is worth, `capacities[drafter]` how many requests it takes. A pair
    worth less than nothing is not made, nor one worth -infinity or NaN.
    """
    slots = [drafter for drafter, places in enumerate(capacities) for _ in range(min(places, len(values)))]
    costs = [[_cost(row[drafter]) for drafter in slots] + [0.0] * len(values) for row in values]
    chosen = _cheapest(costs)
    return tuple(
        slots[column] if column < len(slots) and costs[request][column] < 0.0 else None
        for request, column in enumerate(chosen)
    )


def _cost(value: float) -> float:
    return -value if value > 0.0 else 0.0


def _cheapest(costs: Sequence[Sequence[float]]) -> list[int]:
    """The column of every row at the least total cost; no more rows than columns (Kuhn 1955, with potentials).

    Rows join one by one, each along the shortest augmenting path in reduced costs. Column `columns` is a stand-in
    that holds the row being added.
    """
    columns = len(costs[0]) if costs else 0
    row_potential = [0.0] * len(costs)
    column_potential = [0.0] * (columns + 1)
    holder: list[int | None] = [None] * (columns + 1)
    for row in range(len(costs)):
        holder[columns] = row
        _augment(costs, row_potential, column_potential, holder)
    chosen = [0] * len(costs)
    for column, held in enumerate(holder[:columns]):
        if held is not None:
            chosen[held] = column
    return chosen


def _augment(
    costs: Sequence[Sequence[float]],
    row_potential: list[float],
    column_potential: list[float],
    holder: list[int | None],
) -> None:
    """Find a free column for the row that the stand-in column holds, moving other rows where that is cheaper."""
    columns = len(holder) - 1
    distance = [math.inf] * columns
    before = [columns] * columns
    reached: list[int] = []
    column = columns
    while (row := holder[column]) is not None:
        reached.append(column)
        for other in range(columns):
            reduced = costs[row][other] - row_potential[row] - column_potential[other]
            if other not in reached and reduced < distance[other]:
                distance[other], before[other] = reduced, column
        free = min((other for other in range(columns) if other not in reached), key=distance.__getitem__)
        step = distance[free]
        for other in reached:
            held = holder[other]
            if held is not None:
                row_potential[held] += step
            column_potential[other] -= step
        for other in range(columns):
            if other not in reached:
                distance[other] -= step
        column = free
    while column != columns:
        holder[column] = holder[before[column]]
        column = before[column]
    holder[columns] = None


PRIOR_TOKENS: Final = 4
"""The usual length of a draft, in which prior rounds are counted."""


@dataclass(slots=True)
class DraftedRounds:
    """Rounds of one drafter: accepted tokens and the seconds of drafting of all of them together."""

    rounds: float = 0.0
    tokens: float = 0.0
    draft_s: float = 0.0


class GoodputRouter:
    """Explores for `explore_rounds`, then exploits for `exploit_rounds`, and so on.

    A period of exploitation is `growth` times as long as the one before. A bandit: it learns from the authors that
    were used alone. What it knows of an author loses `forgetting` of its weight with every round of that author.
    With `prior_rounds` an author starts as if it had drafted in that many rounds: as it did for earlier requests
    where that is known, else `PRIOR_TOKENS` in each, of which its share of the prompt's likelihood was accepted.
    A request that begins with such knowledge begins by exploiting it.
    """

    name = "goodput-bandit"

    def __init__(
        self,
        chance: Chance,
        *,
        explore_rounds: int = 2,
        exploit_rounds: int = 8,
        growth: float = 1.0,
        forgetting: float = 0.0,
        prior_rounds: float = 0.0,
    ) -> None:
        self._chance = chance
        self._explore_rounds = explore_rounds
        self._exploit_rounds = float(exploit_rounds)
        self._growth = growth
        self._keep = 1.0 - forgetting
        self._prior_rounds = prior_rounds
        self._known: dict[int, DraftedRounds] = {}
        self._facts: dict[int, DrafterFacts] = {}
        self._arms: dict[int, DraftedRounds] = {}
        self._explores = True
        self._left_rounds = float(explore_rounds)

    def join(self, author: int, facts: DrafterFacts, known: DraftedRounds | None = None) -> None:
        """Make an author available; `known` is what it drafted for earlier requests."""
        self._facts[author] = facts
        self._arms[author] = DraftedRounds()
        if known is not None and self._prior_rounds:
            self._known[author] = known
            if not any(arm.rounds for arm in self._arms.values()):
                self._explores, self._left_rounds = False, self._exploit_rounds

    def leave(self, author: int) -> None:
        self._facts.pop(author, None)
        self._arms.pop(author, None)

    def goodputs(self) -> dict[int, float]:
        """Accepted tokens per second of drafting, for every present author; 0 for one without any evidence."""
        shares = prompt_shares(self._facts)
        return {author: self._goodput(author, shares[author]) for author in self._arms}

    def pick(self, count: int) -> tuple[int, ...]:
        goodputs = self.goodputs()
        order = shuffled(sorted(self._arms), self._chance)
        if self._explores:
            order.sort(key=lambda author: self._arms[author].rounds)
        else:
            order.sort(key=lambda author: -goodputs[author])
        return tuple(order[:count])

    def learn(self, round_: JudgedRound) -> None:
        for author in round_.used & self._arms.keys():
            arm = self._arms[author]
            arm.rounds += 1
            arm.tokens = self._keep * arm.tokens + round_.accepted[author]
            arm.draft_s = self._keep * arm.draft_s + round_.draft_s[author]
        self._left_rounds -= 1.0
        if self._left_rounds >= 1.0:
            return
        self._explores = not self._explores
        if self._explores:
            self._left_rounds = float(self._explore_rounds)
        else:
            self._left_rounds = self._exploit_rounds
            self._exploit_rounds *= self._growth

    def why(self, author: int) -> str:
        period = "exploration" if self._explores else "exploitation"
        return f"{self.goodputs()[author]:.0f} accepted tokens per second of drafting, {period}"

    def _goodput(self, author: int, share: float) -> float:
        arm = self._arms[author]
        if known := self._known.get(author):
            weight = self._prior_rounds / known.rounds
            prior_tokens, prior_s = weight * known.tokens, weight * known.draft_s
        else:
            drafted = self._prior_rounds * PRIOR_TOKENS
            prior_tokens, prior_s = drafted * share, drafted * self._facts[author].token_s
        draft_s = arm.draft_s + prior_s
        return (arm.tokens + prior_tokens) / draft_s if draft_s > 0.0 else 0.0


LEAST_VALUE: Final = 1e-6
"""Accepted tokens per second; what ranks drafters without any evidence."""
FORGETTING: Final = 0.05
"""A drafter's last 20 rounds count, about a paragraph of text."""


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
