"""The verifier's step loop *admit, select, forward, commit*: passes over many requests, one after the other."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from cosine_node.counts import VerifierCounts
from cosine_node.engine.base import Engine, OutOfMemory, OutOfPages, PassAbandoned, Row, RowResult
from cosine_node.engine.curve import CostCurve
from cosine_node.runner import Pass, Runner, count_tokens
from cosine_node.verifier.policy import Policy
from cosine_node.verifier.request import Stage, Step
from cosine_node.verifier.scheduler import PassSchedule, ReadyRequest, schedule_pass
from cosine_node.verifier.selection import (
    MIN_GAIN,
    Candidate,
    candidates_of,
    free_nodes,
    rank,
    select_nodes,
)
from cosine_node.verifier.served import Served, ServedRequests
from cosine_p2p.channel import StepCounts
from cosine_protocol import messages as m
from cosine_protocol.codec import encode_body
from cosine_protocol.errors import CosineError, ErrorCode, PeerError
from cosine_protocol.identity import Identity
from cosine_protocol.limits import MAX_TREE_NODES

LOG = logging.getLogger(__name__)
RETRY_AFTER_S: Final = 2.0
PACE_WEIGHT: Final = 0.1
MAX_SLOWNESS: Final = 4.0
FAILED: Final = "a forward pass failed"
ERROR: Final = "error"

Rows = list[tuple[Served, Row]]


class StepLoop:
    """Runs passes over the served requests. `run` never ends; `wake` it when something changed."""

    def __init__(
        self,
        served: ServedRequests,
        *,
        engine: Engine,
        runner: Runner,
        curve: CostCurve,
        identity: Identity,
        policy: Policy,
        budget_tokens: int,
        counts: VerifierCounts,
    ) -> None:
        self._served = served
        self._engine = engine
        self._runner = runner
        self._curve = curve
        self._identity = identity
        self._policy = policy
        self._budget_tokens = budget_tokens
        self._counts = counts
        self._released: list[int] = []
        self._passing: Rows = []
        self._work = asyncio.Event()
        self._slowness = 1.0
        self.is_idle = asyncio.Event()
        self.progress = StepCounts()

    async def run(self) -> None:
        """Pass after pass; idle while nobody needs one."""
        while True:
            self._free_cancelled()
            rows = self._next_rows()
            if rows:
                await self._step(rows)
            else:
                if not len(self._served):
                    self.is_idle.set()
                self._work.clear()
                await self._work.wait()

    def wake(self) -> None:
        """A request, a draft or a cancellation came. A pass that only serves who has left is abandoned."""
        self._work.set()
        if self._passing and all(served.state.is_cancelled for served, _ in self._passing):
            self._runner.abandon()

    def release(self, sequence: int) -> None:
        """Give a sequence's pages back before the next pass: the engine must not change under a running one."""
        self._released.append(sequence)

    def fail(self, served: Served, error: CosineError) -> None:
        """End a request with an error."""
        served.refuse(error)
        served.log.info("failed, %s", error)
        self._forget(served, ERROR)

    def _free_cancelled(self) -> None:
        for served in self._served:
            if served.state.is_cancelled:
                self._finish(served, m.FinishReason.CANCELLED)
        for sequence in self._released:
            self._engine.release(sequence)
        self._released.clear()

    def _next_rows(self) -> Rows:
        """The rows of the next pass."""
        active = self._served.active
        self._find_pages(active)
        waiting = [
            ReadyRequest(unfed_tokens=served.state.unfed_tokens, waited_passes=served.state.waited_passes)
            for served in active
        ]
        schedule = schedule_pass(waiting, curve=self._curve, budget_tokens=self._budget_tokens)
        chosen = self._select(active, schedule)
        rows: Rows = []
        for place, served in enumerate(active):
            row = self._row_of(served, place, schedule, [c for c in chosen if c.owner == place])
            served.state.waited_passes = 0 if row else served.state.waited_passes + 1
            if row is not None:
                rows.append((served, row))
        return [(served, row) for served, row in rows if served in self._served]

    def _find_pages(self, active: Sequence[Served]) -> None:
        """Whoever begins takes over pages that hold the beginning of its prefix already."""
        for state in (served.state for served in active):
            if state.stage is Stage.PREFILL and not state.has_looked_for_pages:
                state.has_looked_for_pages = True
                if found := self._engine.reuse_prefix(state.sequence, state.certain_tokens):
                    state.note_fed(found)
                    state.has_pages = True

    def _row_of(
        self, served: Served, place: int, schedule: PassSchedule, chosen: Sequence[Candidate]
    ) -> Row | None:
        """A request's row, for which pages are reserved; None if it has no turn or no pages."""
        state = served.state
        if served not in self._served:
            return None
        if place in schedule.chunks and state.stage is Stage.PREFILL:
            row = state.chunk_row(schedule.chunks[place])
            return row if self._has_room_to_begin(served) and self._make_room(served, row) else None
        if place not in schedule.decoding or state.stage is not Stage.DECODE:
            return None
        row = state.decode_row([candidate.node for candidate in chosen])
        if chosen and not self._reserve(served, row):
            row = state.decode_row([])
        return row if self._make_room(served, row) else None

    def _has_room_to_begin(self, served: Served) -> bool:
        """Who begins to be fed has room for all of it, or is the only one: half of a prompt helps nobody.

        Nobody begins before others that wait for room: they might wait for ever.
        """
        state = served.state
        if state.fed_tokens or all(other is served or not other.state.has_pages for other in self._served):
            return True
        older = [other.state for other in self._served if other.state.admission <= state.admission]
        needed = max(one.unfed_tokens for one in older if not one.fed_tokens)
        return self._engine.free_tokens > needed

    def _make_room(self, served: Served, row: Row) -> bool:
        """Reserve pages for a row, if need be those of younger requests; False if it has to wait or failed."""
        while not self._reserve(served, row):
            holders = [other for other in self._served if other.state.has_pages]
            younger = [other for other in holders if other.state.admission > served.state.admission]
            if younger:
                self._preempt(younger[-1])
                continue
            if all(other is served for other in holders):
                sentence = "the request needs more memory than the verifier has"
                self.fail(served, PeerError(ErrorCode.OUT_OF_MEMORY, sentence))
            return False
        served.state.has_pages = True
        return True

    def _reserve(self, served: Served, row: Row) -> bool:
        try:
            self._engine.reserve(served.state.sequence, len(row.tokens))
        except OutOfPages:
            return False
        return True

    def _preempt(self, served: Served) -> None:
        """Take a request's pages; it is fed again once there is room."""
        state = served.state
        self._counts.preempted += 1
        served.log.debug("gives its pages up")
        self._engine.release(state.sequence)
        request = state.request
        state.preempt(
            self._engine.open(sampling=request.sampling, prompt_tokens=len(request.prompt), scope=state.scope)
        )

    def _select(self, active: Sequence[Served], schedule: PassSchedule) -> list[Candidate]:
        """Draft nodes of the next pass: all that a stepped request asked for, of the others what pays.

        Without the policy to drop costly nodes the others get all they have, as far as the budget goes. A request
        in debt gets only what is free on the device's curve: that costs nobody, and may end the debt.
        """
        drops_costly = self._policy.drops_costly_nodes
        min_gain = MIN_GAIN if drops_costly else 0.0
        stepped: list[Candidate] = []
        in_credit: list[Candidate] = []
        in_debt: list[Candidate] = []
        for place in schedule.decoding:
            state = active[place].state
            depth = state.tokens_left - 1
            if state.pacing is m.Pacing.STEPPED:
                stepped += candidates_of(place, state.tree, max_depth=depth, min_gain=0.0)[:MAX_TREE_NODES]
            else:
                found = candidates_of(place, state.tree, max_depth=depth, min_gain=min_gain)
                (in_credit if state.account.may_speculate else in_debt).extend(found)
        sure, budget = len(schedule.decoding), self._budget_tokens
        if drops_costly and in_credit:
            in_credit = select_nodes(
                in_credit,
                plain_rows=sure,
                prompt_tokens=schedule.tokens - sure,
                fixed_nodes=len(stepped),
                curve=self._curve,
                budget_tokens=budget,
            )
        chosen = stepped + rank(in_credit)[: max(0, budget - schedule.tokens - len(stepped))]
        fed = schedule.tokens + len(chosen)
        return chosen + rank(in_debt)[: free_nodes(self._curve, fed_tokens=fed, limit=max(0, budget - fed))]

    async def _step(self, rows: Rows) -> None:
        """One pass. One that fails as a whole may be the fault of a single request: then each gets its own."""
        self._passing = rows
        try:
            done = await self._runner.forward([row for _, row in rows])
        except PassAbandoned:
            self._counts.passes_abandoned += 1
            return
        except Exception as error:
            LOG.exception("a pass over %d requests failed", len(rows))
            self._counts.passes_failed += 1
            await self._step_apart(rows, error)
            return
        finally:
            self._passing = []
        self.progress.steps += 1
        self._counts.note_pass(seconds=done.elapsed_s, rows=len(rows))
        self._note_pace([row for _, row in rows], done)
        for (served, row), result in zip(rows, done.results, strict=True):
            if result.error is not None:
                self.fail(served, result.error)
            elif served in self._served and not served.state.is_cancelled:
                self._try_commit(served, row, result, done, len(rows))

    async def _step_apart(self, rows: Rows, error: Exception) -> None:
        if len(rows) > 1:
            for one in rows:
                await self._step([one])
            return
        is_memory = isinstance(error, OutOfMemory)
        code, sentence = (ErrorCode.OUT_OF_MEMORY, str(error)) if is_memory else (ErrorCode.INTERNAL, FAILED)
        self.fail(rows[0][0], PeerError(code, sentence, RETRY_AFTER_S if is_memory else None))

    def _note_pace(self, rows: list[Row], done: Pass) -> None:
        """Learn how much longer passes take than the curve says: the machine is busy, or a timer late."""
        ratio = done.elapsed_s / self._curve.seconds(count_tokens(rows))
        self._slowness += PACE_WEIGHT * (min(ratio, MAX_SLOWNESS) - self._slowness)

    def _try_commit(self, served: Served, row: Row, result: RowResult, done: Pass, load: int) -> None:
        """One request's failure must not end the loop for the others."""
        try:
            if result.choices:
                self._commit(served, row, result, done, load)
            else:
                self._engine.keep(served.state.sequence, row.nodes)
                self._note_fed(served, row)
        except CosineError as error:
            served.log.exception("a commit failed")
            self.fail(served, PeerError(ErrorCode.INTERNAL, str(error)))

    def _note_fed(self, served: Served, row: Row) -> None:
        self.progress.prefill_tokens += len(row.tokens)
        served.state.note_fed(len(row.tokens))

    def _commit(self, served: Served, row: Row, result: RowResult, done: Pass, load: int) -> None:
        state = served.state
        step = state.accept(row, result.choices)
        self._count(served, step)
        self._engine.keep(state.sequence, step.accepted_nodes)
        self._engine.prune(state.sequence, row.nodes)
        is_prefill = state.stage is Stage.PREFILL
        if is_prefill:
            self._note_fed(served, row)
        state.apply(step)
        state.book(
            step,
            elapsed_s=done.elapsed_s,
            plain_pass_s=self._slowness * self._curve.seconds(load),
            nodes=0 if is_prefill else len(row.tokens) - 1,
        )
        is_answer = not is_prefill and state.pacing is m.Pacing.STEPPED
        state.stage = Stage.AWAIT_VERIFY if state.pacing is m.Pacing.STEPPED else Stage.DECODE
        self._report(served, step, row, done, is_answer=is_answer)
        if step.finish is not None:
            self._finish(served, step.finish)

    def _count(self, served: Served, step: Step) -> None:
        """Author 0 is the target itself."""
        self._counts.committed_tokens += len(step.tokens)
        self._counts.accepted_nodes += sum(map(bool, step.authors))
        self._counts.verified_nodes += sum(any(node.draft_probabilities) for node in served.state.nodes)

    def _report(self, served: Served, step: Step, row: Row, done: Pass, *, is_answer: bool) -> None:
        stats = m.PassStats(
            nodes=len(row.tokens) - row.scored_from - 1,
            near_ties=step.near_ties,
            pass_us=round(1e6 * done.elapsed_s),
            held_us=0,
        )
        number, digest = served.state.number, served.state.tree.root.digest
        message: m.Message = m.Commit(number, step.position, step.tokens, digest, step.authors, stats)
        if is_answer:
            message = m.Verified(number, step.base, step.position, step.tokens, digest, step.authors, stats)
        if not served.channel.post(message):
            served.state.is_cancelled = True

    def _finish(self, served: Served, reason: m.FinishReason) -> None:
        state = served.state
        accepted = tuple(state.accepted.get(author, 0) for author in range(1, state.authors + 1))
        account = m.Account(state.number, reason, len(state.output), state.tree.root.digest, accepted)
        body = encode_body(account)
        served.channel.post(m.Final(body, self._identity.sign(kind="final", digest=state.d_0, body=body)))
        served.log.info("%s, %d tokens", reason.name.lower(), len(state.output))
        self._forget(served, reason.name.lower())

    def _forget(self, served: Served, ending: str) -> None:
        if self._served.remove(served):
            self._counts.ended[ending] += 1
            self._released.append(served.state.sequence)
            self.wake()
