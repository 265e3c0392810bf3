"""The verifier's step loop *schedule, select, forward, commit*: passes over many requests, one after the other."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from cosine_node.counts import VerifierCounts
from cosine_node.engine.base import Engine, OutOfMemory, PassAbandoned, Row, RowResult
from cosine_node.engine.curve import CostCurve
from cosine_node.idle_passes import WaitForWork
from cosine_node.runner import Pass, Runner, count_tokens
from cosine_node.verifier.audited_stream import AuditedStream
from cosine_node.verifier.earnings import signed_earnings
from cosine_node.verifier.home_drafter import HomeDrafter
from cosine_node.verifier.memory import KvMemory
from cosine_node.verifier.policy import Policy
from cosine_node.verifier.request import OwnDrafts, RequestStage, Verdict, VerifierRequest, is_drafter
from cosine_node.verifier.scheduler import PassSchedule, ReadyRequest, schedule_pass
from cosine_node.verifier.selection import (
    MIN_PATH_PROBABILITY,
    CandidateNode,
    candidate_nodes,
    free_nodes,
    most_probable_first,
    select_nodes,
)
from cosine_node.verifier.served import ServedRequests, log_of, post_error
from cosine_p2p.channel import StepCounts
from cosine_p2p.speculation.moving_average import moving_average
from cosine_protocol import messages as m
from cosine_protocol.audit_messages import Transcript
from cosine_protocol.audits import is_transcript_due, sign_transcript
from cosine_protocol.codec import encode_body
from cosine_protocol.errors import CosineError, ErrorCode, PeerError
from cosine_protocol.identity import Identity
from cosine_protocol.limits import HOME_AUTHOR, MAX_TREE_NODES

LOG = logging.getLogger(__name__)
RETRY_AFTER_S: Final = 2.0
"""When a refused client may ask again. A choice: a few dozen passes, in which some request usually ends."""

# How much slower passes are than the cost curve, as the speculation account takes it.
SLOWNESS_WEIGHT: Final = 0.1
"""Weight of the last pass in the average: about ten passes count."""
MAX_SLOWNESS: Final = 4.0
"""Bounds what one pass that stood still, a suspended machine's for example, does to the average."""

Rows = list[tuple[VerifierRequest, Row]]


class StepLoop:
    """Runs passes over the served requests. `run` never ends; `wake` it when something changed."""

    def __init__(
        self,
        requests: ServedRequests,
        *,
        engine: Engine,
        runner: Runner,
        curve: CostCurve,
        identity: Identity,
        policy: Policy,
        budget_tokens: int,
        counts: VerifierCounts,
        wait_for_work: WaitForWork = asyncio.Event.wait,
        home: HomeDrafter | None = None,
        on_place: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`on_place` is called when a request has ended; `clock` gives Unix seconds."""
        self._clock = clock
        self._requests = requests
        self._on_place = on_place
        self._home = home
        self._engine = engine
        self._memory = KvMemory(engine, requests)
        self._runner = runner
        self._curve = curve
        self._identity = identity
        self._policy = policy
        self._budget_tokens = budget_tokens
        self._counts = counts
        self._wait_for_work = wait_for_work
        self._released: list[int] = []
        self._rows_under_way: Rows = []
        self._work = asyncio.Event()
        self._slowness = 1.0
        self.is_idle = asyncio.Event()
        self.progress = StepCounts()

    async def run(self) -> None:
        """Pass after pass; idle while no request needs one."""
        while True:
            self._release_ended()
            if self._home is not None:
                await self._home.draft(self._home_requests(), target_curve=self._curve)
            rows = self._next_rows()
            if rows:
                await self._step(rows)
            else:
                if not len(self._requests):
                    self.is_idle.set()
                self._work.clear()
                await self._wait_for_work(self._work)

    def wake(self) -> None:
        """A request, a draft or a cancellation came. A pass over cancelled requests only is abandoned."""
        self._work.set()
        if self._rows_under_way and all(request.is_cancelled for request, _ in self._rows_under_way):
            self._runner.abandon()

    def release(self, sequence: int) -> None:
        """Give a sequence's pages back before the next pass: the engine must not change under a running one."""
        self._released.append(sequence)

    def fail(self, request: VerifierRequest, error: CosineError) -> None:
        """End a request with an error."""
        post_error(request, error)
        log_of(request).info("failed, %s", error)
        self._forget(request, "error")

    def _release_ended(self) -> None:
        for request in self._requests:
            if request.is_cancelled and isinstance(request, AuditedStream):
                self._forget(request, "cancelled")
            elif request.is_cancelled:
                self._finish(request, m.FinishReason.CANCELLED)
        for sequence in self._released:
            self._engine.release(sequence)
        self._released.clear()

    def _home_requests(self) -> list[VerifierRequest]:
        """The requests of the next pass that may be drafted for here."""
        return [
            request
            for request in self._requests.active
            if request.stage is RequestStage.DECODE
            and request.own_drafts is OwnDrafts.ALL
            and request.may_speculate
            and not request.is_cancelled
        ]

    def _next_rows(self) -> Rows:
        """The rows of the next pass, with pages reserved for each."""
        active = self._requests.active
        for request in active:
            self._memory.use_prefix_cache(request)
        ready = [
            ReadyRequest(
                unfed_tokens=request.unfed_tokens,
                waited_passes=request.waited_passes,
                gives_way=isinstance(request, AuditedStream),
            )
            for request in active
        ]
        schedule = schedule_pass(ready, curve=self._curve, budget_tokens=self._budget_tokens)
        chosen = self._select(active, schedule)
        rows: Rows = []
        for index, request in enumerate(active):
            own = [candidate for candidate in chosen if candidate.owner == index]
            try:
                row = self._row_of(request, index, schedule, own)
            except PeerError as error:
                row = None
                self.fail(request, error)
            request.waited_passes = 0 if row else request.waited_passes + 1
            if row is not None:
                rows.append((request, row))
        self._counts.preempted = self._memory.preempted
        return [(request, row) for request, row in rows if request in self._requests]

    def _row_of(
        self, request: VerifierRequest, index: int, schedule: PassSchedule, chosen: Sequence[CandidateNode]
    ) -> Row | None:
        """A request's row, for which pages are reserved; None if it has no place in the pass or no pages.

        Raises `PeerError` if it needs more pages than there are.
        """
        is_decoding = request.stage is RequestStage.DECODE
        if index in schedule.chunks and not is_decoding:
            row = request.prefill_row(schedule.chunks[index])
            return row if self._memory.may_begin(request) and self._memory.reserve(request, row) else None
        if index not in schedule.decoding or not is_decoding:
            return None
        if chosen:
            row = request.decode_row([candidate.node for candidate in chosen])
            if self._memory.try_reserve(request, row):
                return row
        row = request.decode_row([])
        return row if self._memory.reserve(request, row) else None

    def _select(self, active: Sequence[VerifierRequest], schedule: PassSchedule) -> list[CandidateNode]:
        """Draft nodes of the next pass: all that a stepped request asked for, of the others what pays.

        Without the policy to drop costly nodes the others get all they have, as far as the budget goes. A request
        in debt gets only what is free on the device's curve: that costs no request, and may end the debt.
        """
        drops_costly = self._policy.drops_costly_nodes
        stepped: list[CandidateNode] = []
        in_credit: list[CandidateNode] = []
        in_debt: list[CandidateNode] = []
        for index in schedule.decoding:
            request = active[index]
            is_stepped = request.pacing is m.Pacing.STEPPED
            found = candidate_nodes(
                index,
                request.tree,
                max_depth=request.tokens_left - 1,
                min_path_probability=MIN_PATH_PROBABILITY if drops_costly and not is_stepped else 0.0,
            )
            if is_stepped:
                stepped += found[:MAX_TREE_NODES]
            else:
                (in_credit if request.may_speculate else in_debt).extend(found)
        budget_tokens = self._budget_tokens
        if drops_costly and in_credit:
            in_credit = select_nodes(
                in_credit,
                plain_rows=len(schedule.decoding),
                prompt_tokens=schedule.tokens - len(schedule.decoding),
                fixed_nodes=len(stepped),
                curve=self._curve,
                budget_tokens=budget_tokens,
            )
        room = max(0, budget_tokens - schedule.tokens - len(stepped))
        chosen = stepped + most_probable_first(in_credit)[:room]
        fed_tokens = schedule.tokens + len(chosen)
        free = free_nodes(self._curve, fed_tokens=fed_tokens, limit=max(0, budget_tokens - fed_tokens))
        return chosen + most_probable_first(in_debt)[:free]

    async def _step(self, rows: Rows) -> None:
        """One pass. If it fails as a whole, one request may be at fault: then each gets a pass of its own."""
        self._rows_under_way = rows
        try:
            done = await self._runner.forward([row for _, row in rows])
        except PassAbandoned:
            self._counts.passes_abandoned += 1
            return
        except Exception as error:
            LOG.exception("a pass over %d requests failed", len(rows))
            self._counts.passes_failed += 1
            if len(rows) > 1:
                for one in rows:
                    await self._step([one])
            elif isinstance(error, OutOfMemory):
                self.fail(rows[0][0], PeerError(ErrorCode.OUT_OF_MEMORY, str(error), RETRY_AFTER_S))
            else:
                self.fail(rows[0][0], PeerError(ErrorCode.INTERNAL, "a forward pass failed"))
            return
        finally:
            self._rows_under_way = []
        self.progress.steps += 1
        self._counts.note_pass(seconds=done.elapsed_s, rows=len(rows))
        ratio = done.elapsed_s / self._curve.seconds(count_tokens([row for _, row in rows]))
        self._slowness = moving_average(self._slowness, min(ratio, MAX_SLOWNESS), weight=SLOWNESS_WEIGHT)
        for (request, row), result in zip(rows, done.results, strict=True):
            if result.error is not None:
                self.fail(request, result.error)
            elif request in self._requests and not request.is_cancelled:
                try:
                    self._commit(request, row, result, done, load=len(rows))
                except CosineError as error:  # one request's failure must not end the loop for the others
                    log_of(request).exception("a commit failed")
                    self.fail(request, PeerError(ErrorCode.INTERNAL, str(error)))

    def _commit(self, request: VerifierRequest, row: Row, result: RowResult, done: Pass, *, load: int) -> None:
        """Take one row's result of a pass over `load` requests into its request, and tell the client."""
        if isinstance(request, AuditedStream):
            self._compare(request, row, result)
            return
        if not result.choices:
            self._engine.keep(request.kv.sequence, row.nodes)
            self._note_fed(request, row)
            return
        verdict = request.judge(row, result.choices)
        self._counts.committed_tokens += len(verdict.tokens)
        self._counts.accepted_nodes += sum(map(is_drafter, verdict.authors))
        self._counts.home_nodes += verdict.authors.count(HOME_AUTHOR)
        self._counts.verified_nodes += sum(any(map(is_drafter, node.draft_probabilities)) for node in request.nodes)
        self._engine.keep(request.kv.sequence, verdict.accepted_nodes)
        self._engine.prune(request.kv.sequence, row.nodes)
        is_prefill = request.stage is RequestStage.PREFILL
        if is_prefill:
            self._note_fed(request, row)
        else:
            plain_pass_s = self._slowness * self._curve.seconds(load)
            request.charge(verdict, spent_s=done.elapsed_s, plain_pass_s=plain_pass_s)
        alone_s = self._curve.seconds(1)
        request.note_pace(
            verdict, now_s=asyncio.get_running_loop().time(), load=self._curve.seconds(load) / alone_s
        )
        request.commit(verdict)
        self._report(request, verdict, row, done, is_answer=not is_prefill)
        if verdict.finish is not None:
            self._finish(request, verdict.finish)

    def _compare(self, request: AuditedStream, row: Row, result: RowResult) -> None:
        """Take one row's result into an audit, and answer where it was the last."""
        self._engine.keep(request.kv.sequence, row.nodes)
        request.compare(result.choices)
        self._note_fed(request, row)
        if request.is_compared:
            self._counts.audited_tokens += len(request.output) - request.own_from
            log_of(request).info("audited, %d tokens differ", len(request.different))
            request.post(request.answer(self._identity))
            self._forget(request, "audited")

    def _note_fed(self, request: VerifierRequest, row: Row) -> None:
        self.progress.prefill_tokens += len(row.tokens)
        request.note_fed(len(row.tokens))

    def _report(self, request: VerifierRequest, verdict: Verdict, row: Row, done: Pass, *, is_answer: bool) -> None:
        """Post what a pass committed; to a stepped client as the answer to the `Verify` that asked for it."""
        stats = m.PassStats(
            nodes=len(row.tokens) - row.scored_from - 1,
            near_ties=verdict.near_ties,
            pass_us=round(1e6 * done.elapsed_s),
            held_us=0,
        )
        digest = request.tree.root.digest
        transcript = None
        has_ended = verdict.finish is not None
        if is_transcript_due(before=verdict.position, after=len(request.output), has_ended=has_ended):
            signed = Transcript(request.first, len(request.output), digest)
            transcript = sign_transcript(self._identity, signed, d_0=request.d_0)
        place = (verdict.position, verdict.tokens, digest, verdict.authors, stats, transcript)
        message: m.Message = m.Commit(request.number, *place)
        if is_answer and request.pacing is m.Pacing.STEPPED:
            message = m.Verified(request.number, verdict.base, *place)
        if not request.post(message):
            request.is_cancelled = True

    def _finish(self, request: VerifierRequest, reason: m.FinishReason) -> None:
        accepted = tuple(request.accepted[author] for author in range(1, request.authors + 1))
        account = m.Account(request.number, reason, len(request.output), request.tree.root.digest, accepted)
        body = encode_body(account)
        signature = self._identity.sign(kind="final", digest=request.d_0, body=body)
        earned = signed_earnings(request, self._identity, now_s=self._clock())
        request.post(m.Final(body, signature, earned))
        ending = reason.name.lower()
        log_of(request).info("%s, %d tokens", ending, len(request.output))
        self._forget(request, ending)

    def _forget(self, request: VerifierRequest, ending: str) -> None:
        if self._requests.remove(request):
            if request.trial is not None:
                request.trial.end()
            if self._home is not None:
                self._home.forget(request)
            self._counts.ended[ending] += 1
            self._released.append(request.kv.sequence)
            self._on_place()
            self.wake()
