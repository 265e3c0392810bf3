"""Trials of new verifiers: each repeats the beginning of a finished text, in the background."""

import asyncio
import logging
from dataclasses import replace
from typing import Final

from cosine_p2p.directory.selection import Chance, newcomer_among
from cosine_p2p.session.auditing import FINISH_S, Auditing
from cosine_p2p.session.job import AnnouncedVerifier, Job, Shared
from cosine_p2p.session.peer_search import Candidates
from cosine_p2p.session.request_log import PEER_LETTERS
from cosine_p2p.session.session import Session
from cosine_p2p.transport.patience import end_all
from cosine_p2p.trust.audit_rule import AuditState
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.records import NodeRecord
from cosine_protocol.verify import TRANSCRIPT_EVERY_TOKENS

TRIAL_TOKENS: Final = TRANSCRIPT_EVERY_TOKENS  # The first signed part: a difference can be audited.
PROBATION_S: Final = 30.0  # A verifier that takes a second per token is useless.

logger = logging.getLogger(__name__)


class Probation:
    """The trials of one client's new verifiers, at most one at a time. `chance` draws them."""

    def __init__(self, auditing: Auditing, *, chance: Chance) -> None:
        self._auditing = auditing
        self._chance = chance
        self._task: asyncio.Task[None] | None = None

    def begin(self, done: Session, candidates: Candidates, shared: Shared) -> None:
        """Try a new verifier with the request of a finished session, if there is one and it is drawn."""
        now_s = asyncio.get_running_loop().time()
        top = max(candidates.standing.values(), default=0)
        authors = {author for author, _ in done.signed.parts()}
        # Texts of new verifiers are no reference: they may collude.
        is_known = authors and all(candidates.standing.get(author, 0) == top for author in authors)
        if not (top and is_known) or (self._task is not None and not self._task.done()):
            return
        judges = candidates.judges()
        written = authors.union(*(judges[author].stages for author in authors & judges.keys()))
        # A verifier with the same stages would write the same text in any case.
        akin = {peer for peer, judge in judges.items() if not written.isdisjoint(judge.stages | {peer})}
        newcomer = newcomer_among(
            candidates.records,
            standing=candidates.standing,
            passes_s=candidates.passes_s,
            not_again=self._auditing.convicted | self._auditing.failures.avoided(now_s) | akin,
        )
        if newcomer is None or self._chance() >= self._auditing.standings.trial_chance(now_s):
            return
        self._task = asyncio.ensure_future(self._try(newcomer, done, candidates, shared))

    async def close(self) -> None:
        """Wait `FINISH_S` for a trial in progress, then cancel it."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=FINISH_S)
            await end_all([self._task])

    async def _try(self, newcomer: NodeRecord, done: Session, candidates: Candidates, shared: Shared) -> None:
        """Have a new verifier generate the text; if it differs, others judge what it signed."""
        request = replace(done.job.request, numerics=newcomer.numerics)
        now_s = asyncio.get_running_loop().time()
        job = Job(
            request=request,
            strategy=done.job.strategy,
            verifiers=AnnouncedVerifier.by_peer([newcomer]),
            drafters=(),
            deadline_s=now_s + PROBATION_S,
            cache_scope=done.job.cache_scope,
        )
        session = Session(job, shared)
        stream = session.stream()
        try:
            async for _ in stream:
                if len(session.output) >= TRIAL_TOKENS:
                    break
        except GenerationFailed as failure:
            logger.info("no trial of verifier %s: %s", newcomer.peer_id[-PEER_LETTERS:], failure)
            return
        except Exception:
            logger.exception("a trial failed")
            return
        finally:
            await stream.aclose()
        name = newcomer.peer_id[-PEER_LETTERS:]
        common = min(len(session.output), len(done.output))
        now_s = asyncio.get_running_loop().time()
        if session.output[:common] == done.output[:common]:
            logger.info("new verifier %s generated the same %d tokens", name, common)
            self._auditing.standings.note_right(newcomer.peer_id, now_s=now_s)
            return
        claims = session.signed.claims(request, session.output)
        if not claims:
            logger.info("new verifier %s generated different tokens and signed nothing", name)
            return
        audit = self._auditing.start(claims, candidates.judges())
        await audit.wait(PROBATION_S)
        if audit.state is not AuditState.PASSED:
            logger.info("new verifier %s generated different tokens: %s", name, audit.state)
