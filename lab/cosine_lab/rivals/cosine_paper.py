"""CoSine as published (arXiv 2503.10325): routing by score, and fusion token by token in lockstep.

At every position all chosen drafters extend the fused prefix by one token, the centre, here the client, takes the
token of the largest confidence and tells all of them, and so on; then everything they drafted is merged and
verified in one pass. Every token therefore costs the slowest drafter's time and its round trip.

The paper's agreement is the cosine similarity between the embeddings of an author's token and of the committed one.
A drafter's embeddings are not ours to see, so it is reduced to token equality, its value for equal tokens. The
constants are not published; they are options here. Requests that share drafters and a verifier get their draft
lengths by the paper's batch objective.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_lab.rivals.fused_prefix import TOLD
from cosine_lab.rivals.paths import first_choice
from cosine_lab.rivals.rounds import Acceptance, Rounds, best_draft_tokens, merged
from cosine_lab.rivals.router import Chance, JudgedRound, RequestChance, prompt_shares, shuffled
from cosine_p2p.strategy.base import Action, DrafterStarted, FragmentReceived, SendAssign
from cosine_p2p.strategy.router import DrafterFacts
from cosine_p2p.strategy.tree import TreeNode
from cosine_protocol.messages import PassStats

FORGET_S: Final = 2.0
"""A request begins several rounds a second, so one that is silent so long is over."""

Seconds = Callable[[int, int], float]


def draft_sizes(
    acceptances: Sequence[float],
    wanted: Sequence[int],
    *,
    draft_s: Seconds,
    verify_s: Seconds,
    most: int,
) -> tuple[int, ...]:
    """Draft sizes g, 0 <= g_i <= `wanted`_i, that minimise (T_draft + T_verify) / b.

    T_draft is `draft_s(requests that draft, longest g)`, T_verify is `verify_s(requests, G)` with G = sum g at most
    `most`. With b the number of requests no draft would ever pay, so b is what the
    batch is expected to commit: 1 + a + ... + a^g tokens of a request with acceptance a. For a given longest draft
    and G, the best sizes take the tokens that are likeliest to be accepted; so this is exact where no cost falls
    with longer drafts and T_draft does not depend on how many draft. The paper shortens the largest drafts until
    G fits; here the tokens that are worth least are never taken.
    """
    sizes = [0] * len(wanted)
    best_cost, best = verify_s(len(sizes), 0) / max(1, len(sizes)), tuple(sizes)
    for longest in range(1, max(wanted, default=0) + 1):
        sizes, committed = [0] * len(wanted), float(len(wanted))
        while sum(sizes) < most:
            growing = [i for i, g in enumerate(sizes) if g < min(longest, wanted[i])]
            if not growing:
                break
            chosen = max(growing, key=lambda i: (acceptances[i] ** (sizes[i] + 1), -i))
            sizes[chosen] += 1
            committed += acceptances[chosen] ** sizes[chosen]
            spent_s = draft_s(sum(map(bool, sizes)), max(sizes)) + verify_s(len(sizes), sum(sizes))
            cost = spent_s / committed
            if cost < best_cost:
                best_cost, best = cost, tuple(sizes)
    return best


@dataclass(slots=True)
class _Need:
    wanted: int
    acceptance: float
    at_s: float


class BatchDirector:
    """Gives the requests that share it their draft sizes by `draft_sizes`; its options are those of that function.

    A request says what it wants when it begins a round. One that has not asked for `FORGET_S` is taken to be over.
    """

    def __init__(self, *, draft_s: Seconds, verify_s: Seconds, most: int = 64) -> None:
        self._draft_s = draft_s
        self._verify_s = verify_s
        self._most = most
        self._needs: dict[bytes, _Need] = {}

    def size(self, request: bytes, *, wanted: int, acceptance: float, now_s: float) -> int:
        """The draft size of a request for the round it begins; 0 for a plain pass."""
        self._needs[request] = _Need(wanted, acceptance, now_s)
        self._needs = {r: need for r, need in self._needs.items() if now_s - need.at_s <= FORGET_S}
        needs = list(self._needs.values())
        sizes = draft_sizes(
            [need.acceptance for need in needs],
            [need.wanted for need in needs],
            draft_s=self._draft_s,
            verify_s=self._verify_s,
            most=self._most,
        )
        return sizes[list(self._needs).index(request)]


@dataclass(slots=True)
class _Score:
    value: float
    rounds: int = 0


class CosineScoreRouter:
    """Picks by M, the harmonic mean of confidence and agreement; every slot may explore instead.

    A slot goes to the author tried least with probability `explore_share` (the paper's alpha) while the used
    author's last accepted length is below `short_tokens` (tau), else with probability `exploit_share` (beta).
    `smoothing` is the weight of the newest round in M. An author not tried yet has `untried_score`, or, with
    `has_prior`, its share of the prompt's likelihood as M.
    """

    name = "cosine-score"

    def __init__(
        self,
        chance: Chance,
        *,
        explore_share: float = 0.3,
        exploit_share: float = 0.05,
        short_tokens: float = 2.0,
        smoothing: float = 0.3,
        untried_score: float = 0.5,
        has_prior: bool = False,
    ) -> None:
        self._chance = chance
        self._explore_share = explore_share
        self._exploit_share = exploit_share
        self._short_tokens = short_tokens
        self._smoothing = smoothing
        self._untried_score = untried_score
        self._has_prior = has_prior
        self._facts: dict[int, DrafterFacts] = {}
        self._scores: dict[int, _Score] = {}
        self._last_accepted = 0

    def join(self, author: int, facts: DrafterFacts) -> None:
        self._facts[author] = facts
        self._scores[author] = _Score(self._untried_score)
        shares = prompt_shares(self._facts)
        for number, score in self._scores.items():
            if self._has_prior and not score.rounds:
                score.value = shares[number]

    def leave(self, author: int) -> None:
        self._facts.pop(author, None)
        self._scores.pop(author, None)

    def pick(self, count: int) -> tuple[int, ...]:
        is_short = self._last_accepted < self._short_tokens
        share = self._explore_share if is_short else self._exploit_share
        order = {author: place for place, author in enumerate(shuffled(sorted(self._scores), self._chance))}
        chosen: list[int] = []
        for _ in range(min(count, len(order))):
            rest = [author for author in order if author not in chosen]
            if self._chance.random() < share:
                chosen.append(min(rest, key=lambda author: (self._scores[author].rounds, order[author])))
            else:
                chosen.append(max(rest, key=lambda author: (self._scores[author].value, -order[author])))
        return tuple(sorted(chosen, key=lambda author: -self._scores[author].value))

    def learn(self, round_: JudgedRound) -> None:
        self._last_accepted = max((round_.accepted[author] for author in round_.used), default=0)
        for author, confidence in round_.confidence.items():
            if author not in self._scores:
                continue
            score, agreement = self._scores[author], round_.agreement[author]
            total = confidence + agreement
            harmonic_mean = 2.0 * confidence * agreement / total if total > 0.0 else 0.0
            is_blank = not score.rounds and not self._has_prior
            score.value += (1.0 if is_blank else self._smoothing) * (harmonic_mean - score.value)
            score.rounds += 1

    def why(self, author: int) -> str:
        score = self._scores[author]
        return f"score {score.value:.2f} after {score.rounds} rounds"


QUEUED_PASSES: Final = 1.0
"""A pass whose result comes so many plain passes later than it alone took stood in a queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CosinePaperOptions:
    """`drafters` draft together, `draft_tokens` long; None tunes the length to what is measured.

    Each expands `width_nodes` nodes at a position: 1 for the fused prefix alone, 2 for its own choice as well. Of
    what they draft the fused path and the likeliest others, `max_nodes` in all, are verified. Drafts get shorter
    while passes queue. The rest are the options of `CosineScoreRouter`.
    """

    drafters: int = 2
    draft_tokens: int | None = None
    width_nodes: int = 1
    max_nodes: int = 16
    explore_share: float = 0.3
    exploit_share: float = 0.05
    has_prior: bool = False


@dataclass(frozen=True, slots=True)
class FirstChoice:
    """The token that a drafter would have put at a position."""

    token: int
    confidence: float


class CosinePaper(Rounds):
    """Rounds of fused drafts. Requests that share a director get their draft lengths from it."""

    def __init__(
        self,
        root: bytes,
        position: int = 0,
        *,
        options: CosinePaperOptions = CosinePaperOptions(),
        director: BatchDirector | None = None,
    ) -> None:
        super().__init__(root, position, width_nodes=options.width_nodes)
        self._request = root
        self._options = options
        self._director = director
        self._router = CosineScoreRouter(
            RequestChance(root),
            explore_share=options.explore_share,
            exploit_share=options.exploit_share,
            has_prior=options.has_prior,
        )
        self._acceptance = Acceptance()
        self._wanted_tokens = 0
        self._cut_tokens = 0
        self._fused: list[TreeNode] = []
        self._first_choices: list[dict[int, FirstChoice]] = []
        self._step_at_s = 0.0

    def _join(self, drafter: DrafterStarted) -> None:
        super()._join(drafter)
        facts = DrafterFacts(prompt_nll=drafter.prompt_nll, token_s=drafter.token_s, rtt_s=drafter.rtt_s)
        self._router.join(drafter.author, facts)

    def _leave(self, author: int) -> None:
        super()._leave(author)
        self._router.leave(author)

    def _begin(self, now_s: float) -> list[Action]:
        self._fused, self._first_choices = [], []
        authors = self._pick()
        if not authors:
            return []
        tuned_tokens = self._options.draft_tokens or best_draft_tokens(
            acceptance=self._acceptance.rate,
            draft_token_s=self._step_s(authors),
            round_trips_s=self._verifier.rtt_s,
            verify_s=self._verify_s,
        )
        self._cut_tokens = min(self._cut_tokens, tuned_tokens - 1)
        self._wanted_tokens = tuned_tokens - self._cut_tokens
        if self._director is not None:
            self._wanted_tokens = self._director.size(
                self._request, wanted=self._wanted_tokens, acceptance=self._acceptance.rate, now_s=now_s
            )
        return self._step(authors, now_s) if self._wanted_tokens else []

    def _pick(self) -> list[int]:
        """The router's choice; instead of those that back off, the best of the others."""
        ranked = (*self._router.pick(self._options.drafters), *self._router.pick(len(self._drafters)))
        present = self._present()
        return [author for author in dict.fromkeys(ranked) if author in present][: self._options.drafters]

    def _step_s(self, authors: list[int]) -> float:
        """The time that one position takes: the slowest drafter's token and its round trip."""
        return max(self._drafters[author].rtt_s + self._pace(author) for author in authors)

    def _step(self, authors: list[int], now_s: float) -> list[Action]:
        """Have every drafter extend the fused prefix by one token, and no further.

        A drafter expands what is `depth` tokens deep while less than `window` of its nodes are undecided.
        """
        self._step_at_s = now_s
        fused = tuple(node.token for node in self._fused)
        base = TOLD.note(self._tree.root.digest, fused)
        answered = self._answers()
        assigns = []
        for author in authors:
            drafted = sum(author in node.draft_probabilities for node in self._tree.walk())
            assigns.append(
                SendAssign(
                    author,
                    base,
                    self._tree.position + len(fused),
                    depth=max(1, len(fused)),
                    width=self._width_nodes,
                    window=max(1, drafted + (author not in answered)),
                    why=f"{self._router.why(author)}, token {len(fused) + 1} of {self._wanted_tokens}",
                )
            )
        return self._ask(assigns, expected_s=self._step_s(authors), now_s=now_s)

    def _go_on(self, now_s: float) -> list[Action] | None:
        """Fuse as soon as all have answered; a step may be answered already by what a drafter sent unasked."""
        actions: list[Action] = []
        while self._answers().keys() >= set(self._awaited()):
            self._fuse()
            if len(self._fused) >= self._wanted_tokens:
                return None
            actions = self._step(self._awaited(), now_s)
        return actions

    def _tip(self) -> TreeNode:
        return self._fused[-1] if self._fused else self._tree.root

    def _answers(self) -> dict[int, FirstChoice]:
        """The first choice below the fused prefix of everyone asked who has drafted there."""
        first_choices = {author: first_choice(self._tip(), author) for author in self._asked}
        return {
            author: FirstChoice(node.token, node.draft_probabilities[author])
            for author, node in first_choices.items()
            if node is not None
        }

    def _fuse(self) -> None:
        """Extend the fused prefix by the token of the largest confidence."""
        answers = self._answers()
        winner = max(sorted(answers), key=lambda author: answers[author].confidence)
        self._first_choices.append(answers)
        self._fused.append(self._tip().children[answers[winner].token])
        for author in answers:
            last_s = self._asked[author].last_s
            if last_s is not None and last_s > self._step_at_s:
                self._note_pace(author, last_s - self._step_at_s, tokens=1)

    def _take(self, event: FragmentReceived, now_s: float) -> None:
        """A draft below the fused prefix repeats it as certain; its draft probabilities are those given before."""
        known = [dict(node.draft_probabilities) for node in self._fused]
        super()._take(event, now_s)
        for node, before in zip(self._fused, known, strict=True):
            node.draft_probabilities = before

    def _is_silent(self, author: int) -> bool:
        return author not in self._answers()

    def _note_verified(self, stats: PassStats, took_s: float) -> None:
        """Shorter drafts while passes queue, longer ones again while the verifier waits."""
        super()._note_verified(stats, took_s)
        late_s = took_s - stats.pass_us / 1e6
        is_queued = late_s > QUEUED_PASSES * self._verifier.pass_s
        self._cut_tokens = self._cut_tokens + 1 if is_queued else max(0, self._cut_tokens - 1)

    def _chosen(self) -> list[TreeNode]:
        """The fused path, credited to those who were surest of it, and the likeliest of what else was drafted."""
        if not self._asked:
            return []
        others = [
            node for node in merged(self._tree, self._asked.keys(), most=len(self._tree)) if node not in self._fused
        ]
        room = max(0, self._options.max_nodes - len(self._fused))
        return [*self._fused, *others[:room]]

    def _learn(self, tokens: tuple[int, ...]) -> None:
        if not self._fused:
            return
        path = self._tree.follow(tokens)
        accepted = len([node for node in path if node in self._fused])
        self._acceptance.learn(accepted=accepted, drafted=len(self._fused))
        confidence, agreement = {}, {}
        for author in self._awaited():
            own = [firsts[author].confidence for firsts in self._first_choices if author in firsts]
            if own:
                confidence[author] = sum(own) / len(own)
                committed = zip(self._first_choices, tokens, strict=False)
                hits = [firsts[author].token == token for firsts, token in committed if author in firsts]
                agreement[author] = sum(hits) / len(hits) if hits else 0.0
        self._router.learn(
            JudgedRound(
                authors=frozenset(confidence),
                used=frozenset(confidence),
                accepted={
                    author: sum(author in node.draft_probabilities for node in path) for author in confidence
                },
                confidence=confidence,
                agreement=agreement,
            )
        )
