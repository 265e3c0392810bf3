"""A drafter model in the same process as the verifier's target: home drafts."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from cosine_engine.base import Engine, OutOfPages, Row, TargetActivations
from cosine_engine.constraints.grammars import guide_of
from cosine_engine.curve import CostCurve
from cosine_node.drafter.draft_tree import USUAL_RARITY, Branch, DraftRules, DraftTree
from cosine_node.drafter.service import FIRST_CHOICE_POWER
from cosine_node.passes.counts import DrafterCounts
from cosine_node.passes.learned_curve import LearnedCurve
from cosine_node.passes.runner import Runner, count_tokens
from cosine_node.verifier.home_plan import MAX_LEVELS, HomePlan, HomeProspect, HomeRates, plan_home_drafts, width_of
from cosine_node.verifier.request import VerifierRequest
from cosine_p2p.strategy.fusion import Calibration
from cosine_protocol.draft import MAX_TREE_DEPTH, MAX_WINDOW_NODES
from cosine_protocol.verify import HOME_AUTHOR

LOG = logging.getLogger(__name__)
AHEAD_LEVELS: Final = MAX_TREE_DEPTH - 1
AHEAD_RARITY: Final = 200
"""Trees that grow while passes over stages are under way; less likely nodes are not fed (`costs`)."""
RATE_WEIGHT: Final = 0.02
"""Weight of the last token in the drafter's rates, which average about fifty tokens."""
OWN_RATE_WEIGHT: Final = 0.1
"""The same in the rates of one request, whose text may be easier or harder than others."""
PRIOR_TOKENS: Final = 5
"""Weight of other texts in the rates of a new one, in tokens: drafts that do not pay end after seven or eight wrong
ones, about one pass."""
LEAST_TRIED: Final = 0.3
"""Lower bound of the initial rates of a request, so that one client's texts cannot end the drafts of others. A
small general model reached it on all kinds of questions but translations (`docs/benchmarks/agreement.json`). With
half of it a drafter whose pass takes more than 0.15 of the target's is never tried; twice as much wastes more
passes."""


class SeenLayers(Protocol):
    """A target that keeps the activations of known tokens, such as `TorchEngine`."""

    def activations(self, sequence: int, first: int, last: int) -> TargetActivations:
        """The activations of a sequence's prefix from index `first` up to `last`."""


@dataclass(slots=True, eq=False)
class HomeText:
    """The drafter's view of one request: its tree, and its sequence at the drafter's engine.

    `levels` were drafted for the last pass of the target, when `position` output tokens were known.
    """

    tree: DraftTree
    counts: DrafterCounts
    sequence: int
    rates: HomeRates
    levels: int = 0
    position: int = 0
    learned_passes: int = 1


class HomeDrafter:
    """A small model next to the target, or with a `target` a draft head that reads its activations."""

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
        self._rules = DraftRules(measures_prompt=False, rereads=target is not None)
        self._calibration = Calibration(first_power=FIRST_CHOICE_POWER)
        # Initial values, outweighed after some fifty tokens. A small general model was right at 0.41 to 0.49 of
        # positions; of a head's tree the first level at 0.76 to 0.82, the next at 0.58 to 0.64 (SmolLM2,
        # `docs/benchmarks/agreement.json`).
        self._rates = HomeRates(0.5, 0.5) if target is None else HomeRates(0.8, 0.6)

    def close(self) -> None:
        self._runner.close()

    def speedup(self, target_curve: CostCurve) -> float:
        """The expected speedup over plain decoding by its recent acceptance rates; at least 1."""
        usual = HomeProspect(
            covered=0.0, rates=self._rates, unread_tokens=1, passes_left=1.0, max_levels=MAX_LEVELS
        )
        plan = self._plan([usual], target_curve)
        return plan.tokens_per_s * target_curve.seconds(1)

    def _release_ended(self) -> None:
        """Release pages between passes, since the engine must not change during one."""
        for ended in self._ended:
            self._engine.release(ended.sequence)
        self._ended.clear()

    def _plan(self, prospects: Sequence[HomeProspect], target_curve: CostCurve) -> HomePlan:
        return plan_home_drafts(
            prospects, target_curve=target_curve, drafter_curve=self._learned.curve, width=self._width
        )

    async def draft(self, requests: Sequence[VerifierRequest], *, target_curve: CostCurve) -> None:
        """Draft for the next pass where that pays, and set `has_home_drafts`; a failure ends only home drafts."""
        self._release_ended()
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
                self._texts[request] = self._begin(request, levels=MAX_LEVELS, rarity=USUAL_RARITY)
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

    async def draft_ahead(self, requests: Sequence[VerifierRequest]) -> bool:
        """Run the drafter's next pass while passes over stages are under way; False if there is nothing to draft.

        A token that was not drafted costs a traversal of the stages, and the drafter would be idle meanwhile.
        """
        self._release_ended()
        joining = [request for request in requests if request not in self._given_up and self._is_readable(request)]
        for request in joining:
            self._advance(request)
            if request not in self._texts:
                self._texts[request] = self._begin(request, levels=AHEAD_LEVELS, rarity=AHEAD_RARITY)
                request.is_drafted_ahead = True
        return await self._pass(joining)

    def _is_worth_a_level(
        self, joining: Sequence[VerifierRequest], plan: HomePlan, *, target_curve: CostCurve, fed_tokens: int
    ) -> bool:
        """True if one more level of these trees brings tokens at a higher rate than the plan does on average.

        The plan uses recent rates; the tree shows how predictable the text is here. With a constant number of
        levels the six questions of the demo took 9 % more passes at temperature 0. `fed_tokens` is the length of
        the target's pass without the level.
        """
        texts = [self._texts[request] for request in joining if request in self._texts]
        tokens = sum(text.tree.reach_probability * text.rates.next for text in texts)
        drafting_s = self._learned.curve.seconds(self._width * len(joining))
        longer_s = target_curve.seconds(fed_tokens + len(joining)) - target_curve.seconds(fed_tokens)
        return tokens > plan.tokens_per_s * (drafting_s + longer_s)

    def _begin(self, request: VerifierRequest, *, levels: int, rarity: int) -> HomeText:
        """A new text, whose tree has at most `levels` levels and no path rarer than one in `rarity`."""
        asked = request.request
        prompt, counts = asked.prompt[self._first_token :], DrafterCounts()
        tree = DraftTree(
            request.d_0,
            prompt,
            request.output,
            self._calibration,
            rules=self._rules,
            counts=counts,
            guide=None if self._target is not None else guide_of(self._engine.grammars, asked.sampling),
        )
        tree.assign(Branch(tree.digest, levels, self._width, MAX_WINDOW_NODES, rarity))
        sequence = self._engine.open(sampling=asked.sampling, prompt_tokens=len(prompt))
        return HomeText(tree, counts, sequence, self._first_rates())

    @property
    def _first_token(self) -> int:
        """The index of the first token that the drafter reads: 1 for a draft head, which needs a predecessor."""
        return int(self._target is not None)

    def forget(self, request: VerifierRequest) -> None:
        """Forget a request that has ended; its pages are released before the next pass."""
        self._given_up.discard(request)
        if text := self._texts.pop(request, None):
            self._ended.append(text)

    def _give_up(self, request: VerifierRequest) -> None:
        """Stop drafting for a request, unless it has ended meanwhile."""
        if text := self._texts.pop(request, None):
            self._ended.append(text)
            self._given_up.add(request)

    def _advance(self, request: VerifierRequest) -> None:
        """Advance by newly committed tokens, and learn the rates from them."""
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
        if not self._is_readable(request):
            max_levels = 0
        return HomeProspect(
            covered=request.expected_tokens(),
            rates=rates,
            unread_tokens=unread_tokens,
            passes_left=max(1.0, request.tokens_left / (1.0 + rates.expected(MAX_LEVELS))),
            max_levels=max_levels,
        )

    def _is_readable(self, request: VerifierRequest) -> bool:
        """True for a text that the drafter can read, and continue within its context."""
        known_tokens = len(request.request.prompt) + len(request.output)
        is_long_enough = len(request.request.prompt) > self._first_token
        return is_long_enough and known_tokens + AHEAD_LEVELS <= self._engine.context_tokens

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
                # The last known token is pending; the target has activations of all before it.
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
        """Run one pass of the drafter, and add its nodes to the trees; False if there was nothing to feed."""
        rows = self._rows(requests)
        if not rows:
            return False
        fed = [row for _, _, row in rows]
        try:
            done = await self._runner.forward(fed)
        except Exception:
            # The requests continue without a failed drafter.
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
