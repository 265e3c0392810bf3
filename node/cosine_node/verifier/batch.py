"""The composition of the next pass: the requests of a verifier, a row of each, and their pages.

`PassBatch.next_rows` composes a pass in four steps. The *schedule* says which requests decode and how much of which
prompt is fed (`scheduler`). The *selection* adds draft nodes that are worth their time (`costs`). Each
request makes its *row* of these. *Memory* for each row is reserved in order of admission; where pages are missing,
younger requests are preempted and recomputed later, as in vLLM (Kwon et al. 2023, arXiv 2309.06180).

Invariants: every row that `next_rows` returns has its pages; an older request never waits for a younger one.
"""

import logging
from collections import defaultdict
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cosine_engine.base import Engine, OutOfPages, Row
from cosine_node.passes.counts import VerifierCounts
from cosine_node.passes.fair_pass import CrowdDebt
from cosine_node.passes.runner import Pass, count_tokens
from cosine_node.verifier.costs import CandidateNode, PassCosts, candidate_nodes, most_probable_first
from cosine_node.verifier.request import VerifierRequest
from cosine_node.verifier.scheduler import PassSchedule, schedule_pass
from cosine_node.verifier.served_request import ClientChannel, RequestStage, ServedRequest
from cosine_p2p.fair_places import Turns
from cosine_p2p.session.request_log import RequestLogger
from cosine_p2p.strategy.tree import TreeNode

LOG = logging.getLogger(__name__)


def log_of(request: ServedRequest) -> RequestLogger:
    """The logger of a request, which adds its id and client."""
    return RequestLogger(LOG, request.d_0, client=request.client)


class ServedRequests:
    """Requests by channel and number; iterates over a copy of them, the oldest first."""

    def __init__(self) -> None:
        self._requests: dict[tuple[ClientChannel, int], ServedRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[ServedRequest]:
        return iter(list(self._requests.values()))

    def __contains__(self, request: ServedRequest) -> bool:
        return self._requests.get((request.channel, request.number)) is request

    def get(self, channel: ClientChannel, number: int) -> ServedRequest | None:
        return self._requests.get((channel, number))

    def add(self, request: ServedRequest) -> None:
        self._requests[(request.channel, request.number)] = request

    def remove(self, request: ServedRequest) -> bool:
        """Remove a request; False if it was not there."""
        return self._requests.pop((request.channel, request.number), None) is not None

    def cancel_all(self, channel: ClientChannel) -> None:
        """Cancel all requests of a stream."""
        for request in self:
            if request.channel is channel:
                request.is_cancelled = True

    @property
    def active(self) -> list[ServedRequest]:
        """The requests that can use a pass."""
        return [request for request in self if request.can_use_pass]


class PassRow(NamedTuple):
    """The row of a request in a pass, with its drafted nodes."""

    request: ServedRequest
    row: Row
    drafted: Sequence[TreeNode] = ()


class NeverFits(Exception):
    """A request needs more pages than there are."""


@dataclass(frozen=True, slots=True, eq=False)
class PassUnderWay:
    """A pass that has begun, at `begun_s` of the event loop's clock."""

    rows: Sequence[PassRow]
    done: Awaitable[Pass]
    begun_s: float

    @property
    def tokens(self) -> int:
        return count_tokens([row for _, row, _ in self.rows])


class NodeSelection:
    """Selects the draft nodes of a pass. The laboratory compares it with others."""

    def candidates(self, index: int, request: VerifierRequest) -> list[CandidateNode]:
        """The nodes of the request with this index that may enter the next pass."""
        return candidate_nodes(index, request.tree, max_depth=request.tokens_left - 1, fed=request.fed)

    def that_pay(
        self, candidates: Sequence[CandidateNode], *, fed_tokens: int, costs: PassCosts
    ) -> Sequence[CandidateNode]:
        """The candidates that pay for lengthening a pass over `fed_tokens` tokens."""
        return costs.that_pay(candidates, fed_tokens=fed_tokens)

    def select(
        self, drafting: Sequence[tuple[int, VerifierRequest]], *, fed_tokens: int, costs: PassCosts
    ) -> list[CandidateNode]:
        """The draft nodes of these requests, with their indices, in a pass with `fed_tokens` other tokens.

        A request whose account allows no drafts gets only free nodes, which can end its debt.
        """
        in_credit: list[CandidateNode] = []
        in_debt: list[CandidateNode] = []
        for index, request in drafting:
            own = self.candidates(index, request)
            allowed = costs.allowed(request, own, fed_tokens=fed_tokens)
            in_credit.extend(allowed)
            in_debt.extend([] if allowed else own)
        budget_tokens = costs.budget_tokens(fed_tokens)
        that_pay = self.that_pay(in_credit, fed_tokens=fed_tokens, costs=costs)
        chosen = most_probable_first(that_pay)[: max(0, budget_tokens - fed_tokens)]
        fed_tokens += len(chosen)
        free = costs.free_nodes(fed_tokens, most=max(0, budget_tokens - fed_tokens))
        return chosen + most_probable_first(in_debt)[:free]


class PassBatch:
    """Composes the passes of one engine."""

    def __init__(
        self, engine: Engine, costs: PassCosts, counts: VerifierCounts, *, selection: NodeSelection | None = None
    ) -> None:
        self.requests = ServedRequests()
        self.costs = costs
        self.debt = CrowdDebt(costs.measured)
        self.turns = Turns()
        self._engine = engine
        self._counts = counts
        self._selection = selection or NodeSelection()

    def next_rows(self) -> tuple[list[PassRow], list[ServedRequest]]:
        """The rows of the next pass, and the requests that can never fit."""
        if self.debt.may_join:
            return self._choose_rows(with_crowd=True)
        chosen = self._choose_rows(with_crowd=False)
        return chosen if chosen[0] else self._choose_rows(with_crowd=True)

    @property
    def draftable(self) -> list[VerifierRequest]:
        """The requests of the next pass that the verifier's own drafter may draft for."""
        return [
            request
            for request in self.requests.active
            if isinstance(request, VerifierRequest)
            and request.stage is RequestStage.DECODE
            and (self.debt.may_join or not request.has_crowd)
            and request.may_be_drafted_for
            and not request.is_cancelled
        ]

    def note_pass(self, ended: PassUnderWay, *, forward_s: float, ended_s: float) -> None:
        """Learn from a pass that took `forward_s` and whose results were processed at `ended_s`."""
        self.costs.note_pass(ended.tokens, elapsed_s=forward_s)
        present = {request.user for request in self.requests}
        for request, row, drafted in ended.rows:
            self.turns.note(request.user, len(row.tokens) - len(drafted), present=present)
        if not any(request.has_crowd for request, _, _ in ended.rows):
            return
        self.debt.note_pass(
            tokens=ended.tokens,
            crowd_tokens=sum(
                len(row.tokens) if request.is_crowd else len(drafted) * request.has_crowd
                for request, row, drafted in ended.rows
            ),
            users=max(1, len({request.user for request, _, _ in ended.rows if not request.is_crowd})),
            elapsed_s=self.costs.took_s(ended.tokens, elapsed_s=ended_s - ended.begun_s),
        )

    def _choose_rows(self, *, with_crowd: bool) -> tuple[list[PassRow], list[ServedRequest]]:
        """The rows of the next pass, and requests that can never fit; those without a pass under way come first."""
        active = self.requests.active
        for request in active:
            self._use_prefix_cache(request)
        waiting = [request for request in active if not request.is_pending_fed]
        active = waiting + [request for request in active if request.is_pending_fed]
        schedule = schedule_pass(
            waiting,
            curve=self.costs.curve,
            most_tokens=self.costs.most_tokens,
            chunk_tokens=self.costs.chunk_tokens(max((one.unfed_tokens for one in waiting), default=0)),
            turns=self.turns,
            with_crowd=with_crowd,
        )
        crowded = {waiting[index].user for index in schedule.crowd}
        for index, request in enumerate(waiting):
            request.is_crowd = index in schedule.crowd
            request.has_crowd = request.user in crowded
        drafting = [
            (index, request)
            for index in (*schedule.decoding, *range(len(waiting), len(active)))
            if isinstance(request := active[index], VerifierRequest) and (with_crowd or not request.has_crowd)
        ]
        chosen: defaultdict[int, list[TreeNode]] = defaultdict(list)
        for candidate in self._selection.select(drafting, fed_tokens=schedule.tokens, costs=self.costs):
            chosen[candidate.owner].append(candidate.node)
        rows: list[PassRow] = []
        unfit: list[ServedRequest] = []
        for index, request in enumerate(active):
            row = None
            try:
                row = self._row_of(request, index, schedule, chosen[index])
            except NeverFits:
                unfit.append(request)
            request.waited_passes = 0 if row or request.is_pending_fed else request.waited_passes + 1
            if row is not None:
                rows.append(row)
        # An audit may be preempted by a request that comes after it.
        return [one for one in rows if one.row.sequence == one.request.kv.sequence], unfit

    def _row_of(
        self, request: ServedRequest, index: int, schedule: PassSchedule, chosen: Sequence[TreeNode]
    ) -> PassRow | None:
        """A request's row with reserved pages, if it has a place in the pass. Raises `NeverFits`."""
        if request.stage is not RequestStage.DECODE:
            if index not in schedule.chunks:
                return None
            row = request.prefill_row(schedule.chunks[index])
            return PassRow(request, row) if self.may_begin(request) and self.reserve(request, row) else None
        assert isinstance(request, VerifierRequest), "only what generates decodes"
        if not (chosen if request.is_pending_fed else index in schedule.decoding):
            return None
        if chosen:
            row = request.decode_row(chosen)
            if self._try_reserve(request, row):
                return PassRow(request, row, chosen)
            request.unfeed(row)
        if request.is_pending_fed:
            return None
        row = request.decode_row([])
        if self.reserve(request, row):
            return PassRow(request, row)
        request.unfeed(row)
        return None

    def _use_prefix_cache(self, request: ServedRequest) -> None:
        """Reuse cached pages of the longest known prefix, once for each sequence."""
        if request.stage is RequestStage.DECODE or request.kv.was_prefix_cache_tried:
            return
        request.kv.was_prefix_cache_tried = True
        if not request.may_reuse_prefix:
            return
        if found := self._engine.reuse_prefix(request.kv.sequence, request.known_tokens):
            request.note_fed(found)
            request.kv.has_pages = True
            request.kv.cached_tokens = found

    def may_begin(self, request: ServedRequest) -> bool:
        """True if there is room for the whole prompt and those of older waiting requests, or no other has pages."""
        others = (other for other in self.requests if other is not request)
        if request.kv.fed_tokens or not any(other.kv.has_pages for other in others):
            return True
        older = [other for other in self.requests if other.admission <= request.admission]
        needed = max(other.unfed_tokens for other in older if not other.kv.fed_tokens)
        return self._engine.free_tokens > needed

    def _try_reserve(self, request: ServedRequest, row: Row) -> bool:
        """Reserve pages for a row; False, and nothing changed, if there are too few."""
        try:
            self._engine.reserve(request.kv.sequence, len(row.tokens))
        except OutOfPages:
            return False
        request.kv.has_pages = True
        return True

    def reserve(self, request: ServedRequest, row: Row) -> bool:
        """Reserve pages for a row, preempting younger requests; False to wait. Raises `NeverFits`."""
        while not self._try_reserve(request, row):
            holders = [other for other in self.requests if other.kv.has_pages]
            younger = [other for other in holders if other.admission > request.admission]
            if younger:
                preempted = max(younger, key=lambda other: other.admission)
                self._counts.preempted += 1
                self._engine.release(preempted.kv.sequence)
                self.begin_anew(preempted)
            elif all(other is request for other in holders):
                raise NeverFits
            else:
                return False
        return True

    def begin_anew(self, request: ServedRequest) -> None:
        """Give a request an empty sequence after its pages were lost."""
        wanted = request.request
        request.preempt(
            self._engine.open(sampling=wanted.sampling, prompt_tokens=len(wanted.prompt), scope=request.kv.scope)
        )
