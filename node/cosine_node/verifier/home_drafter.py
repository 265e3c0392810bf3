"""The drafter that a verifier holds beside the target: home drafts, where nobody else's came in time."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from cosine_node.drafter.draft_tree import Branch, DraftTree
from cosine_node.drafter.service import FIRST_CHOICE_POWER
from cosine_node.engine.base import Activations, Engine, OutOfPages, Row
from cosine_node.engine.constraints.grammars import guide_of
from cosine_node.engine.curve import CostCurve
from cosine_node.passes.counts import DrafterCounts
from cosine_node.passes.learned_curve import LearnedCurve
from cosine_node.passes.runner import Runner, count_tokens
from cosine_node.verifier.request import VerifierRequest
from cosine_p2p.strategy.fusion import Calibration
from cosine_p2p.strategy.moving_average import moving_average
from cosine_protocol.limits import HOME_AUTHOR, MAX_WINDOW_NODES

LOG = logging.getLogger(__name__)
MAX_LEVELS: Final = 8
"""Bounds how long the target waits: at an acceptance rate of 0.7 four more levels would bring 0.1 tokens, and the
last four of these bring 0.4."""
LEAST_WIDTH: Final = 4
MOST_WIDTH: Final = 16
WIDE_PASS: Final = 1.25
"""Nodes that a pass of the drafter feeds for each request: as many as lengthen it by a quarter at most. Eight in
place of four, for 1.2 times the time, brought 1.69 times plain in place of 1.59 (SmolLM2 with a draft head)."""
RATE_WEIGHT: Final = 0.02
"""Weight of the last token in the drafter's rates: those of about fifty count."""
OWN_RATE_WEIGHT: Final = 0.1
"""The same in the rates of one request, whose text may be easier or harder than others."""
PRIOR_TOKENS: Final = 5
"""What other texts showed counts for so many tokens of a new one, which then outweigh it: where drafts do not pay
they are left after seven or eight wrong ones, about one pass."""
LEAST_TRIED: Final = 0.3
"""A request is begun as if the drafter were right so often at least, so that one client's texts cannot end the
drafts of others. A small general model was on all kinds of questions but translations
(`docs/benchmarks/agreement.json`). With half as much one whose pass takes more than 0.15 of the target's would not
be tried; with twice as much texts that it does not know would begin with more passes in vain."""


@dataclass(frozen=True, slots=True)
class HomeRates:
    """Acceptance rates of a home drafter: of the first token after a pass, and of each that follows a right one.

    They differ, because a pass ends where a text is hard to guess, and what follows it is often as hard.
    """

    first: float
    next: float

    def expected(self, levels: int) -> float:
        """Tokens accepted of so many levels."""
        return self.first * sum(self.next**level for level in range(levels))

    def learn(self, *, accepted: int, levels: int, weight: float) -> "HomeRates":
        """The rates after a pass that accepted so many tokens of so many levels, at this weight for each token."""
        first = moving_average(self.first, float(accepted > 0), weight=weight)
        following = self.next
        for level in range(1, min(levels, accepted + 1)):
            following = moving_average(following, float(accepted > level), weight=weight)
        return HomeRates(first, following)


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeProspect:
    """A request that could be drafted for at home.

    `covered` is the number of tokens that its tree as it stands is expected to bring, `rates` are those at which
    the drafter is right, `unread_tokens` the text that it has not read yet, `passes_left` the passes of the target
    that may use it once read, `max_levels` the drafted tokens that the request has room for.
    """

    covered: float
    rates: HomeRates
    unread_tokens: int
    passes_left: float
    max_levels: int

    def expected(self, levels: int) -> float:
        """Tokens that so many levels of the drafter's own bring, the best of its guesses and those there are."""
        return max(self.rates.expected(levels), self.covered)


def width_of(drafter_curve: CostCurve) -> int:
    """Nodes that a pass of a drafter with this curve feeds for each request."""
    return drafter_curve.tokens_within(WIDE_PASS, least=LEAST_WIDTH, most=MOST_WIDTH)


@dataclass(frozen=True, slots=True)
class HomePlan:
    """The levels that pay on average, 0 for none, the requests, by index, that join, and tokens a second of all."""

    levels: int = 0
    joining: tuple[int, ...] = ()
    tokens_per_s: float = 0.0


def plan_home_drafts(
    prospects: Sequence[HomeProspect], *, target_curve: CostCurve, drafter_curve: CostCurve, width: int
) -> HomePlan:
    """The plan with the most tokens a second for all requests of the next pass together.

    A drafter beside the verifier has no network in its way, but the target waits for it (SpecInfer with a local
    small model, Miao et al. 2024). So it drafts only where drafts from elsewhere promise less than it does, and
    only as long as a further pass of it brings more tokens a second.

    A pass of the drafter feeds `width` nodes for each request, but the first, that feeds one. A request joins where
    its own drafts promise more than what it has. The time to read text is spread over the passes that profit from
    it.
    """
    plain_tokens = sum(1.0 + prospect.covered for prospect in prospects)
    best = HomePlan(tokens_per_s=plain_tokens / target_curve.seconds(max(1, len(prospects))))
    for levels in range(1, MAX_LEVELS + 1):
        joining = [
            index
            for index, prospect in enumerate(prospects)
            if levels <= prospect.max_levels and prospect.expected(levels) > prospect.covered
        ]
        if not joining:
            continue
        joined = [prospects[index] for index in joining]
        tokens = plain_tokens + sum(prospect.expected(levels) - prospect.covered for prospect in joined)
        reading_s = sum(
            (drafter_curve.seconds(1 + prospect.unread_tokens) - drafter_curve.seconds(1)) / prospect.passes_left
            for prospect in joined
        )
        first_s = drafter_curve.seconds(len(joined)) + max(0.0, reading_s)
        drafting_s = first_s + (levels - 1) * drafter_curve.seconds(width * len(joined))
        pass_s = target_curve.seconds(len(prospects) + levels * len(joined))
        rate = tokens / (pass_s + drafting_s)
        if rate > best.tokens_per_s:
            best = HomePlan(levels, tuple(joining), rate)
    return best


class SeenLayers(Protocol):
    """A target that tells what its layers made of known tokens; `TorchEngine` is one."""

    def activations(self, sequence: int, first: int, last: int) -> Activations:
        """Of the tokens of a sequence's prefix from index `first` up to `last`."""


@dataclass(slots=True, eq=False)
class HomeText:
    """The drafter's view of one request: its tree, and its sequence at the drafter's engine.

    `levels` were drafted for the last pass of the target, when `position` output tokens were known. `counts` are of
    what it drafted, whoever else drafted the same or more.
    """

    tree: DraftTree
    counts: DrafterCounts
    sequence: int
    rates: HomeRates
    levels: int = 0
    position: int = 0
    learned_passes: int = 1


class HomeDrafter:
    """A small model beside the target. `draft` adds nodes to the trees of requests, as `HOME_AUTHOR`.

    With a `target` it is a draft head: each token it reads comes with what the target made of the one before.
    """

    def __init__(
        self, *, engine: Engine, runner: Runner, curve: CostCurve, target: SeenLayers | None = None
    ) -> None:
        self._engine = engine
        self._target = target
        self._runner = runner
        self._learned = LearnedCurve(curve)
        self._width = width_of(curve)
        self._texts: dict[VerifierRequest, HomeText] = {}
        self._given_up: set[VerifierRequest] = set()
        self._ended: list[HomeText] = []
        self._calibration = Calibration(first_power=FIRST_CHOICE_POWER)
        # Before anything was verified, and outweighed after some fifty tokens. A small general model was right at
        # 0.41 to 0.49 of positions (`docs/benchmarks/agreement.json`). Of a head's tree one of the first tokens was
        # right at 0.76 to 0.82 of them, and below a right one at 0.58 to 0.64 (SmolLM2, the questions of that
        # file).
        self._rates = HomeRates(0.5, 0.5) if target is None else HomeRates(0.8, 0.6)

    def close(self) -> None:
        self._runner.close()

    def speedup(self, target_curve: CostCurve) -> float:
        """Times as fast as plain decoding as a request is, by what its drafts brought others lately; at least 1."""
        usual = HomeProspect(
            covered=0.0, rates=self._rates, unread_tokens=1, passes_left=1.0, max_levels=MAX_LEVELS
        )
        plan = self._plan([usual], target_curve)
        return plan.tokens_per_s * target_curve.seconds(1)

    def _plan(self, prospects: Sequence[HomeProspect], target_curve: CostCurve) -> HomePlan:
        return plan_home_drafts(
            prospects, target_curve=target_curve, drafter_curve=self._learned.curve, width=self._width
        )

    async def draft(self, requests: Sequence[VerifierRequest], *, target_curve: CostCurve) -> None:
        """Draft for the requests of the next pass where that pays; each that took part `has_home_drafts`.

        A request that fails here goes on without home drafts.
        """
        # Pages are given back between passes: the engine must not change under a running one.
        for ended in self._ended:
            self._engine.release(ended.sequence)
        self._ended.clear()
        requests = [request for request in requests if request not in self._given_up]
        prospects = []
        for request in requests:
            self._advance(request)
            prospects.append(self._prospect(request))
        plan = self._plan(prospects, target_curve)
        if not plan.levels:
            return
        joining = [requests[index] for index in plan.joining]
        for request in joining:
            if request not in self._texts:
                self._texts[request] = self._begin(request)
        levels, most_levels = 0, min(prospects[index].max_levels for index in plan.joining)
        while levels < most_levels and await self._pass(joining):
            levels += 1
            fed_tokens = len(prospects) + levels * len(joining)
            if not self._is_worth_a_level(joining, plan, target_curve=target_curve, fed_tokens=fed_tokens):
                break
        for request in joining:
            request.has_home_drafts = True
            if text := self._texts.get(request):
                text.levels, text.position = levels, len(request.output)

    def _is_worth_a_level(
        self, joining: Sequence[VerifierRequest], plan: HomePlan, *, target_curve: CostCurve, fed_tokens: int
    ) -> bool:
        """True if one more level of these trees brings tokens at a higher rate than the plan does on average.

        The plan knows what drafts were worth lately; only the tree shows whether this text is easy to guess here.
        With as many levels everywhere the six questions of the demo took 9 % more passes of the target at
        temperature 0. A level brings a token where the text reaches the nodes that are fed, as often as the
        drafter is right below a right token. The target's pass is `fed_tokens` long without it.
        """
        texts = [self._texts[request] for request in joining if request in self._texts]
        tokens = sum(text.tree.reach_probability * text.rates.next for text in texts)
        drafting_s = self._learned.curve.seconds(self._width * len(joining))
        longer_s = target_curve.seconds(fed_tokens + len(joining)) - target_curve.seconds(fed_tokens)
        return tokens > plan.tokens_per_s * (drafting_s + longer_s)

    def _begin(self, request: VerifierRequest) -> HomeText:
        """The drafter's view of a request from now on."""
        asked = request.request
        prompt, counts = asked.prompt[self._first_token :], DrafterCounts()
        tree = DraftTree(
            request.d_0,
            prompt,
            request.output,
            self._calibration,
            counts=counts,
            measures_prompt=False,
            rereads=self._target is not None,
            guide=None if self._target is not None else guide_of(self._engine.grammars, asked.sampling),
        )
        tree.assign(Branch(tree.digest, MAX_LEVELS, self._width, MAX_WINDOW_NODES))
        sequence = self._engine.open(sampling=asked.sampling, prompt_tokens=len(prompt))
        return HomeText(tree, counts, sequence, self._first_rates())

    @property
    def _first_token(self) -> int:
        """The index of the token at which a text is read: for a draft head the first that follows another."""
        return int(self._target is not None)

    def forget(self, request: VerifierRequest) -> None:
        """Forget a request that has ended; what it holds is given back before the next pass."""
        self._given_up.discard(request)
        if text := self._texts.pop(request, None):
            self._ended.append(text)

    def _give_up(self, request: VerifierRequest) -> None:
        """Draft no more for a request, unless it has ended meanwhile and is forgotten already."""
        if text := self._texts.pop(request, None):
            self._ended.append(text)
            self._given_up.add(request)

    def _advance(self, request: VerifierRequest) -> None:
        """Take in what was committed since, and learn from it."""
        if (text := self._texts.get(request)) is None:
            return
        taken_before = text.counts.taken_tokens
        text.tree.advance(text.tree.position, request.output[text.tree.position :])
        if text.levels and len(request.output) > text.position:
            accepted, levels = text.counts.taken_tokens - taken_before, text.levels
            self._rates = self._rates.learn(accepted=accepted, levels=levels, weight=RATE_WEIGHT)
            weight = max(OWN_RATE_WEIGHT, 1 / (PRIOR_TOKENS + text.learned_passes))
            text.rates = text.rates.learn(accepted=accepted, levels=levels, weight=weight)
            text.learned_passes += 1
            text.levels = 0

    def _first_rates(self) -> HomeRates:
        return HomeRates(max(self._rates.first, LEAST_TRIED), max(self._rates.next, LEAST_TRIED))

    def _prospect(self, request: VerifierRequest) -> HomeProspect:
        max_levels = min(MAX_LEVELS, request.tokens_left - 1)
        known_tokens = len(request.request.prompt) + len(request.output)
        unread_tokens, rates = known_tokens - self._first_token, self._first_rates()
        if text := self._texts.get(request):
            unread_tokens, rates = text.tree.unread_tokens, text.rates
        is_readable = len(request.request.prompt) > self._first_token
        if not is_readable or known_tokens + max_levels > self._engine.context_tokens:
            max_levels = 0
        return HomeProspect(
            covered=request.expected_tokens(),
            rates=rates,
            unread_tokens=unread_tokens,
            passes_left=max(1.0, request.tokens_left / (1.0 + rates.expected(MAX_LEVELS))),
            max_levels=max_levels,
        )

    def _rows(self, requests: Sequence[VerifierRequest]) -> list[tuple[VerifierRequest, HomeText, Row]]:
        """The rows of the next pass, with pages reserved for each."""
        rows: list[tuple[VerifierRequest, HomeText, Row]] = []
        for request in requests:
            if (text := self._texts.get(request)) is None:
                continue
            self._engine.prune(text.sequence, text.tree.take_dropped())
            self._engine.keep(text.sequence, text.tree.take_kept())
            unread_tokens = text.tree.unread_tokens
            if (row := text.tree.plan(text.sequence)) is None:
                continue
            if self._target is not None and unread_tokens:
                # The last known token is pending: what the target made of those before it is there.
                end = len(request.request.prompt) + len(request.output) - 1
                seen = self._target.activations(request.kv.sequence, end - unread_tokens, end)
                row = replace(row, activations=seen)
            try:
                self._engine.reserve(text.sequence, len(row.tokens))
            except OutOfPages:
                self._give_up(request)
                continue
            rows.append((request, text, row))
        return rows

    async def _pass(self, requests: Sequence[VerifierRequest]) -> bool:
        """One pass of the drafter over requests, whose trees take what it gives; False if there was nothing."""
        rows = self._rows(requests)
        if not rows:
            return False
        fed = [row for _, _, row in rows]
        try:
            done = await self._runner.forward(fed)
        except Exception:
            # A drafter that fails must not end the requests, which go on without it.
            LOG.exception("a pass of the verifier's own drafter failed")
            for request, _, _ in rows:
                self._give_up(request)
            return False
        self._learned.note_pass(count_tokens(fed), elapsed_s=done.elapsed_s)
        for (request, text, row), result in zip(rows, done.results, strict=True):
            if result.error is not None:
                self._give_up(request)
                continue
            if (block := text.tree.absorb(row, result.choices)) is not None:
                authors = [HOME_AUTHOR] * len(block.nodes)
                request.tree.attach(block.base, block.position, block.nodes, authors)
        return True
