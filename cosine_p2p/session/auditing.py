"""Audits: verifiers check a share of finished streams, and each stream that continues at another verifier."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from cosine_p2p.directory.directory import Directory
from cosine_p2p.directory.selection import Chance
from cosine_p2p.request.results import AuditReport
from cosine_p2p.session.request_log import PEER_LETTERS
from cosine_p2p.session.session import Session
from cosine_p2p.session.upstream import Tokens
from cosine_p2p.transport.addresses import claimed_range, range_of
from cosine_p2p.transport.base import Transport
from cosine_p2p.transport.link import Links, check_knows
from cosine_p2p.transport.patience import end_all
from cosine_p2p.trust.audit_rule import AuditState, accuses, is_decided, state_of
from cosine_p2p.trust.evidence import Evidence, EvidenceFile
from cosine_p2p.trust.mandates import Mandates
from cosine_p2p.trust.peer_memory import PeerFailures
from cosine_p2p.trust.standing import Standings
from cosine_p2p.trust.voices import Opinion, Poll, alternating, voices
from cosine_protocol.audit import AUDIT, AskAudit, Audited, AuditVerdict, open_verdict
from cosine_protocol.digests import roll_digest
from cosine_protocol.errors import (
    CosineError,
    GenerationFailed,
    LocalProtocolError,
    PeerError,
    PeerLost,
    RemoteProtocolError,
)
from cosine_protocol.identity import sign
from cosine_protocol.records import NodeRecord, Role
from cosine_protocol.verify import TRANSCRIPT_EVERY_TOKENS, Transcript

MAX_ASKED: Final = 64  # Bounds a poll. Polls are rare: a judge outvoted twice is rejected.
# An audit of 200 tokens takes four passes (decision 27) once an auditor has time for it. With shorter timeouts
# more audits are lost, with longer ones few are gained.
AUDIT_ANSWER_S: Final = 60.0  # An auditor prefers prompts for half a minute (`cosine_node.verifier.audits`).
FINISH_S: Final = 10.0  # When a program exits: enough for audits in progress.
HOLD_S: Final = 1.0  # Maximum delay of text for the answer of the verifier that continues; a later answer ends it.
TAIL_TOKENS: Final = 2 * TRANSCRIPT_EVERY_TOKENS  # Replayed in one pass: unsigned tokens, as many signed.
UNFORESEEABLE: Final[Chance] = random.SystemRandom().random  # No verifier may predict which streams are audited.

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Judge:
    """The record data of a verifier that may judge others: numerics, stages, and address range."""

    numerics: str
    stages: frozenset[str] = frozenset()
    address_range: str = ""

    @classmethod
    def of(cls, record: NodeRecord) -> "Judge":
        return cls(record.numerics, frozenset(record.stages or ()), claimed_range(record.addresses))


def has_ranges(judges: Mapping[str, Judge]) -> bool:
    """Return whether the judges have different address ranges."""
    return len({judge.address_range for judge in judges.values()}) > 1


@dataclass(slots=True)
class StreamAudit:
    """The audit of one generation so far, with evidence for each signed part, in order."""

    state: AuditState
    evidence: list[Evidence] = field(default_factory=list)
    task: "asyncio.Task[None] | None" = None

    def report(self) -> AuditReport:
        return AuditReport(self.state, tuple(self.evidence))

    async def wait(self, seconds: float = FINISH_S) -> None:
        """Wait until the audit has ended, or for `seconds`."""
        if self.task is not None:
            await asyncio.wait([self.task], timeout=seconds)


class Auditing:
    """The audits of one client. `chance` draws the streams and the auditors.

    Judges are the target's verifiers that the user allows, in random order, alternating address ranges. An audit
    ends with the first judge that finds no error. An accusation starts a poll: all are asked until the rest
    cannot change the majority of voices (`cosine_p2p.trust.voices`). A single voice demotes only itself, and with
    an honest majority no number of liars convicts an honest verifier.
    """

    def __init__(
        self,
        transport: Transport,
        failures: PeerFailures,
        standings: Standings,
        *,
        file: EvidenceFile | None = None,
        chance: Chance = UNFORESEEABLE,
    ) -> None:
        self.failures = failures
        self.standings = standings
        self._file = file
        self._chance = chance
        self._transport = transport
        self._links = Links(transport)
        self._numbers = count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        if file is not None:
            standings.convict(file.convicted())

    @property
    def convicted(self) -> frozenset[str]:
        """The verifiers that were found to be wrong: asked last, and not believed."""
        return self.standings.rejected(asyncio.get_running_loop().time())

    async def close(self) -> None:
        """Wait `FINISH_S` for audits in progress, then cancel them."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FINISH_S)
        await end_all(self._tasks)
        await self._links.close()

    def begin(self, session: Session, *, judges: Mapping[str, Judge], share: float) -> StreamAudit:
        """Audit a session if it is drawn, by `share` and its authors' standing; `judges` include its authors."""
        claims = session.signed.claims(session.job.request, session.output)
        now_s = asyncio.get_running_loop().time()
        chances = [self.standings.audit_chance(claim.author, share, now_s=now_s) for claim in claims]
        if claims and self._chance() < max(chances):
            return self.start(claims, judges)
        state = AuditState.OFF if not share else AuditState.NOT_DRAWN if claims else AuditState.UNSIGNED
        return StreamAudit(state, [Evidence.of(claim) for claim in claims])

    def start(self, claims: Sequence[AskAudit], judges: Mapping[str, Judge]) -> StreamAudit:
        audit = StreamAudit(AuditState.UNDER_WAY, [Evidence.of(claim) for claim in claims])
        audit.task = asyncio.ensure_future(self._run(audit, claims, judges))
        self._tasks.add(audit.task)
        audit.task.add_done_callback(self._tasks.discard)
        return audit

    async def _run(self, audit: StreamAudit, claims: Sequence[AskAudit], judges: Mapping[str, Judge]) -> None:
        try:
            states = [await self._audit(audit, index, claim, judges) for index, claim in enumerate(claims)]
            audit.state = max(states, key=list(AuditState).index)
        except Exception:
            logger.exception("an audit failed")
            audit.state = AuditState.UNANSWERED

    async def _audit(
        self, audit: StreamAudit, index: int, claim: AskAudit, judges: Mapping[str, Judge]
    ) -> AuditState:
        """Ask judges until one finds no error, or a poll is decided."""
        known = judges.get(claim.author)
        author = {claim.author} | (known.stages if known is not None else frozenset())
        shared = {known.address_range} - {""} if known is not None and has_ranges(judges) else set[str]()

        def rank(peer: str) -> tuple[bool, bool]:
            return not author.isdisjoint(judges[peer].stages | {peer}), judges[peer].address_range in shared

        waiting = sorted((peer for peer in self._drawn(judges) if peer != claim.author), key=rank)[:MAX_ASKED]
        opinions: list[Opinion] = []
        for left, judge in zip(range(len(waiting) - 1, -1, -1), waiting, strict=True):
            answered = await self._opinion(judge, claim, judges)
            if answered is not None:
                opinion, answer = answered
                opinions.append(opinion)
                if judges[judge].numerics == claim.request.numerics:
                    audit.evidence[index] = audit.evidence[index].stated(judge, answer, place=opinion.address_range)
            if is_decided(Poll.of(opinions, author=author), left=left):
                break
        state = state_of(Poll.of(opinions, author=author)) if waiting else AuditState.NO_AUDITOR
        self._act(state, claim, audit.evidence[index], opinions)
        return state

    def _drawn(self, judges: Mapping[str, Judge]) -> list[str]:
        avoided = self.failures.avoided(asyncio.get_running_loop().time())
        fit = sorted((peer for peer in judges if peer not in self.convicted), key=lambda _: self._chance())
        drawn = alternating(fit, {peer: judge.address_range for peer, judge in judges.items()})
        # Peers that failed recently may not answer; their answers count as any other's.
        return sorted(drawn, key=lambda peer: peer in avoided)

    async def _opinion(
        self, judge: str, claim: AskAudit, judges: Mapping[str, Judge]
    ) -> tuple[Opinion, Audited] | None:
        answered = await self._ask(judge, claim)
        if answered is None:
            return None
        answer, verdict = answered
        is_accusation = accuses(verdict, claim.request, numerics=judges[judge].numerics)
        address_range = await self._range_of(judge, judges)
        return Opinion(judge, is_accusation, frozenset(verdict.stages or ()), address_range), answer

    async def _range_of(self, peer: str, judges: Mapping[str, Judge]) -> str:
        """Return the address range where a peer was seen, else the one that it announces."""
        if not has_ranges(judges):
            return ""
        with suppress(PeerLost):
            if seen := await self._transport.address_of(peer):
                return range_of(seen)
        return judges[peer].address_range if peer in judges else ""

    async def judged(
        self, pieces: Sequence[Evidence], directory: Directory, *, trust: Collection[str] = (), wait_s: float
    ) -> tuple[Evidence, ...]:
        """Return the claims with new statements of verifiers (only `trust`) of their numerics, `wait_s` each."""
        found: list[Evidence] = []
        for piece in pieces:
            try:
                claim = piece.open().claim
            except RemoteProtocolError:
                found.append(piece)
                continue
            records = await directory.find(Role.VERIFIER, claim.request.target_digest.hex())
            able = {
                record.peer_id: Judge.of(record)
                for record in records
                if record.numerics == claim.request.numerics and (not trust or record.peer_id in trust)
            }
            audit = self.start([claim], able)
            await audit.wait(wait_s)
            found += audit.evidence
        return tuple(found)

    async def judge(self, auditor: str, claim: AskAudit) -> AuditVerdict | None:
        answered = await self._ask(auditor, claim)
        return answered[1] if answered is not None else None

    async def _ask(self, auditor: str, claim: AskAudit) -> tuple[Audited, AuditVerdict] | None:
        """Return one auditor's answer and verdict; None without a credible one."""
        try:
            async with asyncio.timeout(AUDIT_ANSWER_S):
                link = await self._links.get(auditor, AUDIT)
                await check_knows(link, claim.request)
                answer = await link.ask(replace(claim, number=next(self._numbers)))
            if not isinstance(answer, Audited):
                raise RemoteProtocolError(f"unexpected {type(answer).__name__}")
            return answer, open_verdict(answer, auditor=auditor, claim=claim)
        except RemoteProtocolError as error:
            self.failures.note_error(auditor, error, now_s=asyncio.get_running_loop().time())
            reason: CosineError | str = error
        except (PeerError, PeerLost, LocalProtocolError) as error:
            # It may be busy, of an older version, or have another limit: none of these is penalised.
            reason = error
        except TimeoutError:
            reason = f"no answer within {AUDIT_ANSWER_S:g} s"
        logger.info("no audit by %s: %s", auditor[-PEER_LETTERS:], reason)
        return None

    def _act(self, state: AuditState, claim: AskAudit, evidence: Evidence, opinions: Sequence[Opinion]) -> None:
        now_s = asyncio.get_running_loop().time()
        author = claim.author[-PEER_LETTERS:]
        accusers = [one.judge for one in opinions if one.is_accusation]
        names = ", ".join(peer[-PEER_LETTERS:] for peer in accusers)
        match state:
            case AuditState.CONVICTED:
                logger.warning(
                    "verifier %s is convicted: it committed tokens that its target does not choose", author
                )
                self.standings.reject(claim.author, now_s=now_s)
            case AuditState.SUSPECTED | AuditState.DISPUTED:
                logger.warning("verifier %s is accused by %s; it is undecided which is wrong", author, names)
            case AuditState.PASSED if accusers:
                logger.warning("verifier %s was accused by %s, but most others found it correct", author, names)
                self.standings.note_right(claim.author, now_s=now_s)
            case _:
                logger.info("audit of verifier %s: %s", author, state)
                if state is AuditState.PASSED:
                    self.standings.note_right(claim.author, now_s=now_s)
                return
        if self._file is not None and evidence.statements:
            self._file.add(evidence)
        if state not in (AuditState.CONVICTED, AuditState.PASSED):
            return
        # The majority also checks each judge of the poll.
        for one in opinions:
            if one.is_accusation is (state is AuditState.CONVICTED):
                self.standings.note_right(one.judge, now_s=now_s)
            elif one.stages:
                # One of its stages may be wrong, and the head replaces it; the judge is avoided for a while.
                self.failures.note_failed(one.judge, now_s=now_s)
            else:
                self.standings.note_outvoted(one.judge, now_s=now_s)


class TextAccused(GenerationFailed):
    """The verifier that continues a text reports that a part of it is not the target's."""


class FailoverCheck:
    """Asks the verifier that continues a stream about its end, signed by the client, not by the lost verifier."""

    def __init__(self, session: Session, *, mandates: Mandates, auditing: Auditing) -> None:
        self._session = session
        self._identity = mandates.identity
        self._auditing = auditing
        self._seen = 1
        self._asking: list[asyncio.Task[None]] = []
        self._accusation = ""

    async def checked(self, stream: AsyncIterator[Tokens]) -> AsyncGenerator[Tokens, None]:
        """Yield the session's stream. Raises `TextAccused` once yielded tokens are accused."""
        try:
            async for tokens in stream:
                if asking := self._next():
                    await asyncio.wait([asking], timeout=HOLD_S)
                self._raise_accusation()
                yield tokens
            if self._asking:
                await asyncio.wait(self._asking, timeout=HOLD_S)
            self._raise_accusation()
        finally:
            for asking in self._asking:
                asking.cancel()

    def _next(self) -> "asyncio.Task[None] | None":
        """Start to ask about an ended part that another verifier has continued."""
        parts = self._session.signed.parts()
        if len(parts) == self._seen:
            return None
        (author, first), (judge, end) = parts[self._seen - 1], parts[self._seen]
        self._seen += 1
        if author == judge:
            return None
        self._asking.append(asyncio.ensure_future(self._ask(author, judge, max(first, end - TAIL_TOKENS), end)))
        return self._asking[-1]

    def _raise_accusation(self) -> None:
        if self._accusation:
            raise TextAccused(self._accusation)

    async def _ask(self, author: str, judge: str, first: int, end: int) -> None:
        """Ask the verifier that continues; if it accuses, ask another one."""
        request, tokens = self._session.job.request, tuple(self._session.output[:end])
        part = Transcript(first, end, roll_digest(self._session.d_0, tokens))
        signed = sign(self._identity, part, digest=self._session.d_0)
        claim = AskAudit(0, request, tokens, self._identity.peer_id, signed)
        verdict = await self._auditing.judge(judge, claim)
        if verdict is None or not accuses(verdict, request):
            return
        others = [peer_id for peer_id in self._session.verifiers if peer_id not in (author, judge)]
        # The second opinion comes from the first of two that answers and is independent of the judge. The text ends
        # in either case, so further opinions would only show which verifier to avoid.
        for other in others[:2]:
            second = await self._auditing.judge(other, claim)
            if (
                second is not None
                and voices([{judge, *(verdict.stages or ())}, {other, *(second.stages or ())}]) == 2
            ):
                if not accuses(second, request):
                    self._auditing.failures.note_failed(judge, now_s=asyncio.get_running_loop().time())
                break
        wrong = min((finding.position for finding in verdict.findings), default=first)
        logger.warning(
            "verifier %s is accused by %s, which continues", author[-PEER_LETTERS:], judge[-PEER_LETTERS:]
        )
        self._accusation = (
            f"Verifier {author} failed, and verifier {judge}, which continued, computes different tokens "
            f"from output token {wrong + 1} on; one of them is wrong, so repeat the request."
        )
