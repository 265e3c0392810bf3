"""The rows of a verifier's next pass: its schedule, the draft nodes that pay, and their pages. Pure."""

from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass
from typing import Final

from cosine_engine.base import Engine, Row
from cosine_engine.curve import CostCurve
from cosine_node.passes.fair_pass import CrowdDebt
from cosine_node.passes.feed_pace import ChainPace, FeedPace
from cosine_node.passes.learned_curve import LearnedCurve
from cosine_node.passes.runner import Pass, count_tokens
from cosine_node.verifier.request import RequestStage, ServedRequest, VerifierRequest, is_planned
from cosine_node.verifier.scheduler import PassSchedule, schedule_pass
from cosine_node.verifier.served import KvMemory, ServedRequests
from cosine_p2p.fair_places import Turns
from cosine_p2p.strategy.tree import LiveTree, TreeNode
from cosine_protocol.errors import CosineError, PeerError

MIN_PATH_PROBABILITY: Final = 0.005
"""Bounds the work of selection: a less likely node gains less than 1/200 of a token."""
STRETCH: Final = 1.25
"""Factor by which drafts may lengthen an ordered pass: with recorded text over four stages of 15 ms and 200 ms of
network time, 8 and 12 nodes a pass (1.1 and 1.2 times) are the fastest of 4, 8, 12 and 16, by up to 10 %."""
LONGER_SHARE: Final = 0.02
"""Share of a traversal by which they may lengthen it at each stage up to `USUAL_NODES`: light stages take less time
for a pass than its messages do, so that nodes would wait for many short passes."""
USUAL_NODES: Final = 12

Rows = list[tuple[ServedRequest, Row]]


@dataclass(frozen=True, slots=True)
class CandidateNode:
    """A node of the request with index `owner`, and the probability that its whole path is committed."""

    owner: int
    node: TreeNode
    path_probability: float


def candidate_nodes(
    owner: int,
    tree: LiveTree,
    *,
    max_depth: int,
    min_path_probability: float = MIN_PATH_PROBABILITY,
    fed: Container[TreeNode] = (),
) -> list[CandidateNode]:
    """Unfed nodes of a live tree with at least this path probability, at most `max_depth` deep, parents first."""
    deepest = tree.position + max_depth
    found = tree.path_probabilities(lambda node: node.draft_probability if node.position < deepest else None)
    return [
        CandidateNode(owner, node, probability)
        for node, probability in found.items()
        if probability >= min_path_probability and node not in fed
    ]


def most_probable_first(candidates: Sequence[CandidateNode]) -> list[CandidateNode]:
    """Candidates by descending path probability; a parent always comes before its children."""
    return sorted(candidates, key=lambda candidate: (-candidate.path_probability, candidate.node.position))


def select_nodes(
    candidates: Sequence[CandidateNode], *, fed_tokens: int, curve: CostCurve, budget_tokens: int
) -> list[CandidateNode]:
    """The most probable candidates that together maximise the expected tokens per second of the pass.

    The pass also feeds `fed_tokens` tokens of decoding requests and prompts; a node adds its path probability and
    one token's cost. This is the batch objective of CoSine (arXiv 2503.10325) for one verifier.
    """
    ranked = most_probable_first(candidates)[: max(0, budget_tokens - fed_tokens)]
    expected_tokens = float(fed_tokens)
    best_rate = expected_tokens / curve.seconds(fed_tokens) if fed_tokens else 0.0
    best_count = 0
    for count, candidate in enumerate(ranked, 1):
        expected_tokens += candidate.path_probability
        rate = expected_tokens / curve.seconds(fed_tokens + count)
        if rate > best_rate:
            best_rate, best_count = rate, count
    return ranked[:best_count]


@dataclass(frozen=True, slots=True, eq=False)
class PassUnderWay:
    """A pass that has begun, at `begun_s` of the event loop's clock; `nodes` counts drafted nodes by row."""

    rows: Rows
    nodes: tuple[int, ...]
    done: Awaitable[Pass]
    begun_s: float

    @property
    def tokens(self) -> int:
        return count_tokens([row for _, row in self.rows])


class PassRows:
    """Chooses rows for the served requests; `fail` ends a request that needs more pages than there are."""

    def __init__(
        self,
        requests: ServedRequests,
        *,
        engine: Engine,
        curve: CostCurve,
        budget_tokens: int,
        pace: FeedPace,
        fail: Callable[[ServedRequest, CosineError], None],
    ) -> None:
        self._requests = requests
        self.memory = KvMemory(engine, requests)
        self._measured = curve
        self._learned = LearnedCurve(curve)
        self._budget_tokens = budget_tokens
        self._pace = pace
        self._fail = fail
        self.debt = CrowdDebt(curve)
        self.turns = Turns()

    @property
    def curve(self) -> CostCurve:
        """The present cost of passes; of ordered ones, at the slowest stage."""
        return self._learned.curve

    def note_pass(self, ended: PassUnderWay, *, forward_s: float, ended_s: float) -> None:
        """Learn from a pass that took `forward_s` and whose results were processed at `ended_s`."""
        if not self._pace.is_ordered:
            self._learned.note_pass(ended.tokens, elapsed_s=forward_s)
        present = {request.user for request in self._requests}
        for (request, row), nodes in zip(ended.rows, ended.nodes, strict=True):
            self.turns.note(request.user, len(row.tokens) - nodes, present=present)
        if not any(request.has_crowd for request, _ in ended.rows):
            return
        self.debt.note_pass(
            tokens=ended.tokens,
            crowd_tokens=sum(
                len(row.tokens) if request.is_crowd else nodes * request.has_crowd
                for (request, row), nodes in zip(ended.rows, ended.nodes, strict=True)
            ),
            users=max(1, len({request.user for request, _ in ended.rows if not request.is_crowd})),
            elapsed_s=self._measured.seconds(ended.tokens) if self._pace.is_ordered else ended_s - ended.begun_s,
        )

    def next_rows(self) -> Rows:
        """The rows of the next pass, with pages reserved for each."""
        if self.debt.may_join:
            return self._choose_rows(with_crowd=True)
        return self._choose_rows(with_crowd=False) or self._choose_rows(with_crowd=True)

    def _choose_rows(self, *, with_crowd: bool) -> Rows:
        """The rows of the next pass; requests without a pass under way come first."""
        active = self._requests.active
        for request in active:
            self.memory.use_prefix_cache(request)
        waiting = [request for request in active if not request.is_pending_fed]
        active = waiting + [request for request in active if request.is_pending_fed]
        schedule = schedule_pass(
            waiting,
            curve=self.curve,
            budget_tokens=self._budget_tokens,
            with_crowd=with_crowd,
            turns=self.turns,
            pace=self._pace,
        )
        crowded = {waiting[index].user for index in schedule.crowd}
        for index, request in enumerate(waiting):
            request.is_crowd = index in schedule.crowd
            request.has_crowd = request.user in crowded
        chosen = self._select(active, schedule, waiting=len(waiting), with_crowd=with_crowd)
        rows: Rows = []
        for index, request in enumerate(active):
            own = [candidate.node for candidate in chosen if candidate.owner == index]
            try:
                row = self._row_of(request, index, schedule, own)
            except PeerError as error:
                row = None
                self._fail(request, error)
            request.waited_passes = 0 if row or request.is_pending_fed else request.waited_passes + 1
            if row is not None:
                rows.append((request, row))
        return [(request, row) for request, row in rows if request in self._requests]

    def _row_of(
        self, request: ServedRequest, index: int, schedule: PassSchedule, chosen: Sequence[TreeNode]
    ) -> Row | None:
        """A request's row with reserved pages, if it has a place. Raises `PeerError` if it can never fit."""
        if request.stage is not RequestStage.DECODE:
            if index not in schedule.chunks:
                return None
            row = request.prefill_row(schedule.chunks[index])
            return row if self.memory.may_begin(request) and self.memory.reserve(request, row) else None
        assert isinstance(request, VerifierRequest), "only what generates decodes"
        if not (chosen if request.is_pending_fed else index in schedule.decoding):
            return None
        if chosen:
            row = request.decode_row(chosen)
            if self.memory.try_reserve(request, row):
                return row
            request.unfeed(row)
        if request.is_pending_fed:
            return None
        row = request.decode_row([])
        if self.memory.reserve(request, row):
            return row
        request.unfeed(row)
        return None

    def _select(
        self, active: Sequence[ServedRequest], schedule: PassSchedule, *, waiting: int, with_crowd: bool
    ) -> list[CandidateNode]:
        """The draft nodes of the next pass.

        Requests from index `waiting` on have their pending token in a pass under way. A request whose account
        allows no drafts gets only nodes that are free on the device's curve, which may end its debt.
        """
        in_credit: list[CandidateNode] = []
        in_debt: list[CandidateNode] = []
        for index in (*schedule.decoding, *range(waiting, len(active))):
            request = active[index]
            if isinstance(request, VerifierRequest) and (with_crowd or not request.has_crowd):
                own = self.candidates(index, request)
                allowed = self._allowed(request, own, fed_tokens=schedule.tokens)
                in_credit.extend(allowed)
                in_debt.extend([] if allowed else own)
        budget_tokens = self._budget_tokens
        if isinstance(self._pace, ChainPace):
            least_s = self.curve.seconds(max(1, schedule.tokens))
            usual = self.curve.most_tokens(
                within_s=least_s + LONGER_SHARE * self._pace.traversal_s(1), limit=schedule.tokens + USUAL_NODES
            )
            budget_tokens = max(usual, self.curve.most_tokens(within_s=STRETCH * least_s, limit=budget_tokens))
        elif in_credit:
            in_credit = self.that_pay(in_credit, schedule.tokens)
        chosen = most_probable_first(in_credit)[: max(0, budget_tokens - schedule.tokens)]
        fed_tokens = schedule.tokens + len(chosen)
        # The learned curve has no two equal costs, so the measured one shows what is free.
        fed_s = self._measured.seconds(fed_tokens)
        room = max(0, budget_tokens - fed_tokens)
        free = next((n for n in range(room) if self._measured.seconds(fed_tokens + n + 1) > fed_s), room)
        return chosen + most_probable_first(in_debt)[:free]

    def _allowed(
        self, request: VerifierRequest, own: Sequence[CandidateNode], *, fed_tokens: int
    ) -> list[CandidateNode]:
        """The candidates that a request's account allows beside `fed_tokens` tokens, and all home drafts."""
        if request.account is None or self._pace.is_ordered:
            return list(own) if request.may_speculate else []
        ranked = most_probable_first(own)[: max(0, self._budget_tokens - fed_tokens)]
        planned = [one for one in ranked if request.has_home_drafts and is_planned(one.node)]
        others = [one for one in ranked if not (request.has_home_drafts and is_planned(one.node))]
        base_tokens = fed_tokens + len(planned)
        base_s = self.curve.seconds(base_tokens)
        most = request.account.most_nodes(
            (candidate.node for candidate in others),
            lambda nodes: self.curve.seconds(base_tokens + nodes) - base_s,
            plain_pass_s=self.curve.seconds(fed_tokens),
        )
        return planned + others[:most]

    def candidates(self, index: int, request: VerifierRequest) -> list[CandidateNode]:
        """The nodes of a request that may enter the next pass."""
        return candidate_nodes(index, request.tree, max_depth=request.tokens_left - 1, fed=request.fed)

    def that_pay(self, candidates: Sequence[CandidateNode], fed_tokens: int) -> list[CandidateNode]:
        """The candidates that pay for lengthening a pass over `fed_tokens` tokens."""
        return select_nodes(candidates, fed_tokens=fed_tokens, curve=self.curve, budget_tokens=self._budget_tokens)
